/* Memory that changes while it is registered, and memory in steady use: what a program does with its own memory must come out right
 * however the engine reaches it (FERROCE_MEMORY_TIERS), which the program can't tell. Prints one line a part; ends with 1 at the first that
 * is not as it should be. Knows nothing of Ferroce. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "pair.h"

#define PAGE 4096
#define SMALL (16 * PAGE)
#define LARGE (16UL << 20)
#define CHUNK (1UL << 20)

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp[2];
static char *local;
static struct ibv_mr *local_mr;

static struct ibv_mr *reg(void *memory, size_t length) {
  struct ibv_mr *mr = ibv_reg_mr(pd, memory, length, ALL);
  CHECK(mr, "reg_mr");
  return mr;
}

static void dereg(struct ibv_mr *mr) { CHECK(!ibv_dereg_mr(mr), "dereg_mr"); }

static void connect_qps(void) {
  for (int i = 0; i < 2; i++) {
    if (qp[i]) CHECK(!ibv_destroy_qp(qp[i]), "destroy_qp");
    qp[i] = new_qp(pd, cq, cq, 16);
  }
  join_qps(context, qp[0], qp[1]);
}

/* One work request between `local` and the memory. */
static enum ibv_wc_status transfer(enum ibv_wr_opcode opcode, struct ibv_mr *mr, const void *at, uint32_t length) {
  struct ibv_sge sge = {.addr = (uintptr_t)local, .length = length, .lkey = local_mr->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;
  if (opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
    wr.wr.atomic.remote_addr = (uintptr_t)at;
    wr.wr.atomic.rkey = mr->rkey;
    wr.wr.atomic.compare_add = 1;
  } else {
    wr.wr.rdma.remote_addr = (uintptr_t)at;
    wr.wr.rdma.rkey = mr->rkey;
  }
  CHECK(!ibv_post_send(qp[0], &wr, &bad), "post_send");
  return complete(cq).status;
}

static void expect(enum ibv_wr_opcode opcode, struct ibv_mr *mr, const void *at, uint32_t length, const char *what) {
  enum ibv_wc_status status = transfer(opcode, mr, at, length);
  CHECK(status == IBV_WC_SUCCESS, "%s: %s", what, ibv_wc_status_str(status));
}

/* What is shared with others: both see what a peer writes. */
static void shared_files(void) {
  int file = memfd_create("tiers", MFD_CLOEXEC);
  CHECK(file >= 0 && !ftruncate(file, SMALL), "memfd_create");
  char *one = mmap(NULL, SMALL, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  char *other = mmap(NULL, SMALL, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  struct ibv_mr *mr = reg(one, SMALL);
  memset(local, 7, SMALL);
  expect(IBV_WR_RDMA_WRITE, mr, one, SMALL, "WRITE to a memfd");
  CHECK(other[0] == 7 && other[SMALL - 1] == 7, "another mapping of the memfd has other bytes");
  other[PAGE] = 9;
  expect(IBV_WR_RDMA_READ, mr, one + PAGE, 1, "READ of a memfd");
  CHECK(local[0] == 9, "READ brought a %d", local[0]);
  /* A child has it too. */
  pid_t child = fork();
  if (!child) {
    one[5] = 11;
    _exit(0);
  }
  CHECK(waitpid(child, NULL, 0) == child, "waitpid");
  expect(IBV_WR_RDMA_READ, mr, one + 5, 1, "READ of what a child wrote");
  CHECK(local[0] == 11, "READ of what a child wrote brought a %d", local[0]);
  /* The file loses its second half. */
  CHECK(!ftruncate(file, SMALL / 2), "ftruncate");
  expect(IBV_WR_RDMA_READ, mr, one + 5, 1, "READ of the half that is left");
  CHECK(local[0] == 11, "READ of the half that is left brought a %d", local[0]);
  enum ibv_wc_status status = transfer(IBV_WR_RDMA_READ, mr, one + SMALL / 2, 1);
  CHECK(status == IBV_WC_REM_OP_ERR, "READ of what the file lost: %s", ibv_wc_status_str(status));
  connect_qps();
  dereg(mr);
  CHECK(!munmap(one, SMALL) && !munmap(other, SMALL) && !close(file), "munmap");
  char *huge = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
  if (huge != MAP_FAILED) {
    mr = reg(huge, 2 << 20);
    memset(local, 13, SMALL);
    expect(IBV_WR_RDMA_WRITE, mr, huge + 77, SMALL, "WRITE to shared hugepages");
    CHECK(huge[77] == 13 && huge[76 + SMALL] == 13 && !huge[77 + SMALL], "shared hugepages have other bytes");
    dereg(mr);
    munmap(huge, 2 << 20);
  }
  printf("shared files: right%s\n", huge == MAP_FAILED ? ", no hugepages here" : "");
}

/* Memory that goes, and comes back, while it is registered. `flags` of mmap. */
static void changes(const char *kind, int flags) {
  char *memory = mmap(NULL, SMALL, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED, "mmap");
  struct ibv_mr *mr = reg(memory, SMALL);
  memset(memory, 1, SMALL);
  CHECK(!mprotect(memory, SMALL, PROT_READ), "mprotect");
  memset(local, 2, SMALL);
  /* As with an adapter; a system call can't write to a shared mapping that may only be read. */
  enum ibv_wc_status status = transfer(IBV_WR_RDMA_WRITE, mr, memory, SMALL);
  char found = 2;
  if (status == IBV_WC_REM_OP_ERR && flags & MAP_SHARED) {
    found = 1;
    connect_qps();
  } else {
    CHECK(status == IBV_WC_SUCCESS, "WRITE to what was made read-only since: %s", ibv_wc_status_str(status));
  }
  CHECK(memory[0] == found && memory[SMALL - 1] == found, "%s: WRITE brought other bytes", kind);
  CHECK(!munmap(memory, SMALL / 2), "munmap");
  expect(IBV_WR_RDMA_READ, mr, memory + SMALL / 2, SMALL / 2, "READ of the half that is left");
  /* What is gone: an error, or as with an adapter the pages as they were. Never another's. */
  memset(local, 3, SMALL);
  status = transfer(IBV_WR_RDMA_READ, mr, memory, PAGE);
  if (status == IBV_WC_SUCCESS) {
    CHECK(local[0] == found && local[PAGE - 1] == found, "%s: READ of unmapped memory brought a %d", kind, local[0]);
  } else {
    CHECK(status == IBV_WC_REM_OP_ERR, "%s: READ of unmapped memory: %s", kind, ibv_wc_status_str(status));
    connect_qps();
  }
  /* Registered again, it is what is there now. */
  dereg(mr);
  char *again = mmap(memory, SMALL, PROT_READ | PROT_WRITE, flags | MAP_ANONYMOUS | MAP_FIXED, -1, 0);
  CHECK(again == memory, "mmap at the same place");
  memory[9] = 4;
  mr = reg(memory, SMALL);
  expect(IBV_WR_RDMA_READ, mr, memory + 9, 1, "READ of what was mapped again");
  CHECK(local[0] == 4, "%s: READ of what was mapped again brought a %d", kind, local[0]);
  dereg(mr);
  CHECK(!munmap(memory, SMALL), "munmap");
  printf("%s that changes: right\n", kind);
}

/* Threads count up words of the memory all the time, each its own, with plain instructions. */
enum { WRITERS = 2 };
static atomic_bool done;
static volatile uint64_t *counted[WRITERS];
static uint64_t counts[WRITERS];

static void *count_up(void *number) {
  int own = *(int *)number;
  while (!atomic_load(&done)) {
    for (int i = 0; i < 100; i++) *counted[own] += 1;
    counts[own] += 100;
  }
  return NULL;
}

/* Uses the memory for `times` its size. */
static void use(struct ibv_mr *mr, char *memory, size_t bytes, int times) {
  for (int i = 0; i < times; i++)
    for (size_t at = 0; at < bytes; at += CHUNK) expect(IBV_WR_RDMA_READ, mr, memory + at, CHUNK, "READ in steady use");
}

/* No update is lost, of the program's or of its peer's, whatever becomes of the pages meanwhile. */
static void steady_use(void) {
  char *memory = mmap(NULL, LARGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED, "mmap");
  for (size_t at = 0; at < LARGE; at += PAGE) memory[at] = (char)(at / PAGE);
  struct ibv_mr *mr = reg(memory, LARGE);
  pthread_t threads[WRITERS];
  int numbers[WRITERS];
  for (int i = 0; i < WRITERS; i++) {
    counted[i] = (volatile uint64_t *)(memory + LARGE / 2 * i + 256);
    numbers[i] = i;
    CHECK(!pthread_create(&threads[i], NULL, count_up, &numbers[i]), "pthread_create");
  }
  uint64_t added = 0;
  volatile uint64_t *sum = (volatile uint64_t *)(memory + LARGE / 4 + 512);
  for (int round = 0; round < 8; round++) {
    use(mr, memory, LARGE, 1);
    for (int i = 0; i < 50; i++, added++) expect(IBV_WR_ATOMIC_FETCH_AND_ADD, mr, (void *)sum, 8, "FETCH_ADD");
  }
  atomic_store(&done, 1);
  for (int i = 0; i < WRITERS; i++) {
    pthread_join(threads[i], NULL);
    CHECK(*counted[i] == counts[i], "thread %d counted %lu, the memory has %lu", i, counts[i], *counted[i]);
  }
  CHECK(*sum == added, "the peer added %lu, the memory has %lu", added, *sum);
  for (size_t at = 0; at < LARGE; at += PAGE) CHECK(memory[at] == (char)(at / PAGE), "page %zu has other bytes", at / PAGE);
  /* A child has what there was, and what it writes is its own. */
  memory[100] = 21;
  int ends[2];
  CHECK(!pipe(ends), "pipe");
  pid_t child = fork();
  if (!child) {
    char go;
    if (memory[100] != 21 || memory[PAGE] != 1) _exit(2);
    memory[100] = 22;
    _exit(read(ends[0], &go, 1) == 1 && memory[100] == 22 ? 0 : 3);
  }
  memory[101] = 23;
  expect(IBV_WR_RDMA_READ, mr, memory + 100, 2, "READ after fork");
  CHECK(local[0] == 21 && local[1] == 23, "READ after fork brought %d and %d", local[0], local[1]);
  int status;
  CHECK(write(ends[1], "x", 1) == 1 && waitpid(child, &status, 0) == child, "waitpid");
  CHECK(WIFEXITED(status) && !WEXITSTATUS(status), "the child ended with %#x", status);
  CHECK(memory[100] == 21, "the child's write is in the parent's memory");
  close(ends[0]);
  close(ends[1]);
  dereg(mr);
  CHECK(!munmap(memory, LARGE), "munmap");
  printf("steady use: %lu updates, none lost\n", counts[0] + counts[1] + added);
}

/* An allocator's block: used, grown, used, freed. */
static void growing(void) {
  size_t bytes = 4 << 20;
  char *block = malloc(bytes);
  for (size_t at = 0; at < bytes; at += PAGE) block[at] = (char)(at / PAGE + 1);
  for (int round = 0; round < 3; round++) {
    struct ibv_mr *mr = reg(block, bytes);
    use(mr, block, bytes, 6);
    dereg(mr);
    block = realloc(block, bytes * 2);
    CHECK(block, "realloc");
    for (size_t at = 0; at < bytes; at += PAGE)
      CHECK(block[at] == (char)(at / PAGE + 1), "page %zu has other bytes after realloc", at / PAGE);
    for (size_t at = bytes; at < bytes * 2; at += PAGE) block[at] = (char)(at / PAGE + 1);
    bytes *= 2;
    mr = reg(block, bytes);
    expect(IBV_WR_RDMA_READ, mr, block + bytes - PAGE, 1, "READ after realloc");
    CHECK(local[0] == block[bytes - PAGE], "READ after realloc brought a %d", local[0]);
    dereg(mr);
  }
  free(block);
  block = calloc(1, bytes);
  for (size_t at = 0; at < bytes; at += PAGE / 2) CHECK(!block[at], "calloc gave memory that is not zero");
  free(block);
  printf("growing: right\n");
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  context = open_first();
  pd = ibv_alloc_pd(context);
  cq = ibv_create_cq(context, 64, NULL, NULL, 0);
  local = calloc(1, CHUNK);
  CHECK(pd && cq && local, "objects");
  local_mr = reg(local, CHUNK);
  connect_qps();
  shared_files();
  changes("private memory", MAP_PRIVATE);
  changes("shared memory", MAP_SHARED);
  steady_use();
  growing();
  dereg(local_mr);
  for (int i = 0; i < 2; i++) CHECK(!ibv_destroy_qp(qp[i]), "destroy_qp");
  CHECK(!ibv_destroy_cq(cq) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "the end");
  free(local);
  const char *tiers = getenv("FERROCE_MEMORY_TIERS");
  printf("all of it right, with %s\n", tiers ? tiers : "the default");
  return 0;
}

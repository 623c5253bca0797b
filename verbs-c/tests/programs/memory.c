/* Registers every kind of memory that a process has, and lets two RC QPs of this process read and write it. Prints one line a
 * kind; ends with 1 at the first that is not as it should be. Knows nothing of Ferroce. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#define BYTES 20000
#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
#define CHECK(condition, ...)            \
  do {                                   \
    if (!(condition)) {                  \
      printf("line %d: ", __LINE__);     \
      printf(__VA_ARGS__);               \
      printf(" (%s)\n", strerror(errno)); \
      exit(1);                           \
    }                                    \
  } while (0)

static char initialized[BYTES] = "data";
static char zeroed[BYTES];
static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_qp *qp[2];

static void modify(struct ibv_qp *one, struct ibv_qp *other, const union ibv_gid *gid) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL};
  int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  CHECK(!ibv_modify_qp(one, &attr, mask), "INIT");
  struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = other->qp_num,
                            .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
                            .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .hop_limit = 64}}};
  mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC |
         IBV_QP_MIN_RNR_TIMER;
  CHECK(!ibv_modify_qp(one, &rtr, mask), "RTR");
  struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
  mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  CHECK(!ibv_modify_qp(one, &rts, mask), "RTS");
}

/* Two QPs, each the other's peer. */
static void connect_qps(void) {
  union ibv_gid gid;
  CHECK(!ibv_query_gid(context, 1, 0, &gid), "GID 0");
  for (int i = 0; i < 2; i++) {
    if (qp[i]) CHECK(!ibv_destroy_qp(qp[i]), "destroy_qp");
    struct ibv_qp_init_attr init = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC,
                                    .cap = {.max_send_wr = 16, .max_recv_wr = 16, .max_send_sge = 2, .max_recv_sge = 2}};
    qp[i] = ibv_create_qp(pd, &init);
    CHECK(qp[i], "create_qp");
  }
  modify(qp[0], qp[1], &gid);
  modify(qp[1], qp[0], &gid);
}

static enum ibv_wc_status complete(void) {
  struct ibv_wc wc;
  for (time_t end = time(NULL) + 20; time(NULL) < end;) {
    int count = ibv_poll_cq(cq, 1, &wc);
    CHECK(count >= 0, "poll_cq");
    if (count) return wc.status;
  }
  CHECK(0, "no completion");
}

static enum ibv_wc_status transfer(enum ibv_wr_opcode opcode, struct ibv_mr *here, void *at, struct ibv_mr *there,
                                   void *to, size_t length) {
  struct ibv_sge sge = {.addr = (uintptr_t)at, .length = length, .lkey = here->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = opcode, .send_flags = IBV_SEND_SIGNALED}, *bad;
  wr.wr.rdma.remote_addr = (uintptr_t)to;
  wr.wr.rdma.rkey = there->rkey;
  CHECK(!ibv_post_send(qp[0], &wr, &bad), "post_send");
  return complete();
}

/* Writes a pattern from the heap to the memory, and reads it back to another place. */
static void try_memory(const char *kind, char *memory, size_t length) {
  static unsigned seed = 1;
  char *source = malloc(length), *sink = calloc(1, length);
  for (size_t i = 0; i < length; i++) source[i] = (char)rand_r(&seed);
  struct ibv_mr *mr = ibv_reg_mr(pd, memory, length, ALL);
  CHECK(mr, "%s: reg_mr", kind);
  struct ibv_mr *from = ibv_reg_mr(pd, source, length, 0), *to = ibv_reg_mr(pd, sink, length, ALL);
  CHECK(from && to, "%s: reg_mr of the heap", kind);
  CHECK(transfer(IBV_WR_RDMA_WRITE, from, source, mr, memory, length) == IBV_WC_SUCCESS, "%s: WRITE", kind);
  CHECK(!memcmp(source, memory, length), "%s: WRITE brought other bytes", kind);
  memory[length / 2] ^= 1;
  source[length / 2] ^= 1;
  CHECK(transfer(IBV_WR_RDMA_READ, to, sink, mr, memory, length) == IBV_WC_SUCCESS, "%s: READ", kind);
  CHECK(!memcmp(source, sink, length), "%s: READ brought other bytes", kind);
  CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(from) && !ibv_dereg_mr(to), "%s: dereg_mr", kind);
  free(source);
  free(sink);
  printf("%s: right\n", kind);
}

static void try_kinds(void) {
  char stack[BYTES];
  try_memory("stack", stack, BYTES);
  try_memory("initialized data, unaligned", initialized + 3, BYTES - 7);
  try_memory("zeroed data", zeroed, BYTES);
  char name[] = "/tmp/ferroce-memory-XXXXXX";
  int file = mkstemp(name);
  CHECK(file >= 0 && !unlink(name) && !ftruncate(file, BYTES), "a file");
  char *memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  try_memory("file, shared", memory, BYTES);
  memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE, file, 0);
  try_memory("file, private", memory, BYTES);
  memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  try_memory("anonymous, shared", memory, BYTES);
  int id = shmget(IPC_PRIVATE, BYTES, IPC_CREAT | 0600);
  memory = shmat(id, NULL, 0);
  CHECK(memory != (char *)-1 && !shmctl(id, IPC_RMID, NULL), "SysV memory");
  try_memory("SysV", memory, BYTES);
  memory = mmap(NULL, 2 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_HUGETLB, -1, 0);
  if (memory != MAP_FAILED) try_memory("hugetlb", memory, BYTES);
  struct ibv_mr *twice = ibv_reg_mr(pd, zeroed, BYTES / 2, ALL);
  try_memory("registered already, overlapping", zeroed + 1000, BYTES - 1000);
  CHECK(twice && !ibv_dereg_mr(twice), "overlapping");
  char *grown = realloc(malloc(BYTES), 64 << 20);
  try_memory("grown by realloc", grown + (63 << 20), BYTES);
  free(grown);
}

/* What must fail, and how. */
static void try_mistakes(void) {
  char *memory = mmap(NULL, 1 << 20, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  struct ibv_mr *mr = ibv_reg_mr(pd, memory, 1 << 20, ALL), *heap;
  char *local = calloc(1, BYTES);
  heap = ibv_reg_mr(pd, local, BYTES, ALL);
  CHECK(mr && heap, "reg_mr");
  errno = 0;
  CHECK(!ibv_reg_mr(pd, (void *)4096, 1, 0) && errno == EFAULT, "unmapped memory was registered");
  char *fixed = mmap(NULL, 4096, PROT_READ, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(!ibv_reg_mr(pd, fixed, 10, ALL) && errno == EFAULT, "read-only memory was registered for writing");
  struct ibv_mr *readable = ibv_reg_mr(pd, fixed, 10, IBV_ACCESS_REMOTE_READ);
  CHECK(readable && !ibv_dereg_mr(readable), "read-only memory for reading");
  CHECK(!ibv_reg_mr(pd, local, 10, IBV_ACCESS_REMOTE_WRITE) && errno == EINVAL, "REMOTE_WRITE without LOCAL_WRITE");
  CHECK(ibv_dealloc_pd(pd) == EBUSY, "a domain in use was freed");
  munmap(memory, 1 << 19);
  CHECK(transfer(IBV_WR_RDMA_WRITE, heap, local, mr, memory + (1 << 19), 100) == IBV_WC_SUCCESS, "the half that is left");
  enum ibv_wc_status status = transfer(IBV_WR_RDMA_WRITE, heap, local, mr, memory, 100);
  CHECK(status == IBV_WC_REM_OP_ERR, "WRITE to unmapped memory: %s", ibv_wc_status_str(status));
  connect_qps();
  status = transfer(IBV_WR_RDMA_WRITE, mr, memory, heap, local, 100);
  CHECK(status == IBV_WC_LOC_PROT_ERR, "WRITE from unmapped memory: %s", ibv_wc_status_str(status));
  connect_qps();
  CHECK(mmap(memory, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED, -1, 0) == memory, "mmap");
  memory[5] = 77;
  CHECK(transfer(IBV_WR_RDMA_READ, heap, local, mr, memory, 100) == IBV_WC_SUCCESS, "memory that is mapped again");
  CHECK(local[5] == 77, "memory that is mapped again has other bytes");
  CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(heap), "dereg_mr");
  free(local);
  printf("mistakes: told\n");
}

/* A child changes its copy; peers see the parent's. */
static void try_fork(void) {
  char *memory = malloc(BYTES), *sink = malloc(BYTES);
  memset(memory, 1, BYTES);
  struct ibv_mr *mr = ibv_reg_mr(pd, memory, BYTES, ALL), *to = ibv_reg_mr(pd, sink, BYTES, ALL);
  pid_t child = fork();
  if (child == 0) {
    memset(memory, 2, BYTES);
    _exit(0);
  }
  memset(memory, 3, BYTES);
  waitpid(child, NULL, 0);
  CHECK(transfer(IBV_WR_RDMA_READ, to, sink, mr, memory, BYTES) == IBV_WC_SUCCESS, "READ after fork");
  CHECK(sink[0] == 3 && sink[BYTES - 1] == 3, "READ after fork brought a %d", sink[0]);
  CHECK(!ibv_dereg_mr(mr) && !ibv_dereg_mr(to), "dereg_mr");
  free(memory);
  free(sink);
  printf("fork: the parent's\n");
}

static double now_us(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1e6 + now.tv_nsec / 1e3;
}

static int by_value(const void *a, const void *b) {
  return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

static void measure(void) {
  enum { TIMES = 501 };
  static double small[TIMES], large[TIMES];
  size_t gibibyte = 1UL << 30;
  char *memory = mmap(NULL, gibibyte, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  for (int i = 0; i < TIMES; i++) {
    double start = now_us();
    struct ibv_mr *mr = ibv_reg_mr(pd, memory, 4096, ALL);
    small[i] = now_us() - start;
    CHECK(mr && !ibv_dereg_mr(mr), "4 KiB");
    start = now_us();
    mr = ibv_reg_mr(pd, memory, gibibyte, ALL);
    large[i] = now_us() - start;
    CHECK(mr && !ibv_dereg_mr(mr), "1 GiB");
  }
  qsort(small, TIMES, sizeof small[0], by_value);
  qsort(large, TIMES, sizeof large[0], by_value);
  printf("registered 4 KiB in %.1f us, 1 GiB in %.1f us\n", small[TIMES / 2], large[TIMES / 2]);
}

int main(void) {
  int count;
  struct ibv_device **list = ibv_get_device_list(&count);
  CHECK(list && count > 0, "no device");
  context = ibv_open_device(list[0]);
  CHECK(context, "open_device");
  ibv_free_device_list(list);
  pd = ibv_alloc_pd(context);
  cq = ibv_create_cq(context, 64, NULL, NULL, 0);
  CHECK(pd && cq, "PD and CQ");
  connect_qps();
  try_kinds();
  try_mistakes();
  try_fork();
  measure();
  CHECK(ibv_destroy_cq(cq) == EBUSY, "a CQ in use was destroyed");
  CHECK(!ibv_destroy_qp(qp[0]) && !ibv_destroy_qp(qp[1]) && !ibv_destroy_cq(cq), "destroy");
  CHECK(!ibv_dealloc_pd(pd) && !ibv_close_device(context), "the end");
  return 0;
}

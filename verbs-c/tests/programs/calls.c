/* The data path makes no system call and no allocation: a thread that may make none posts and polls in every way. (It may yield the core
 * after a thousand polls in vain, and wake an engine that sleeps.) Prints one line; is killed, or ends with 1, if anything is wrong. Knows
 * nothing of Ferroce. */
#define _GNU_SOURCE
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>

#include "pair.h"

#define ROUNDS 500
#define BATCH 8

static __thread long allocations;

#ifndef __SANITIZE_ADDRESS__
void *__libc_malloc(size_t);
void *__libc_realloc(void *, size_t);
void *__libc_calloc(size_t, size_t);
void *malloc(size_t bytes) {
  allocations++;
  return __libc_malloc(bytes);
}
void *realloc(void *old, size_t bytes) {
  allocations++;
  return __libc_realloc(old, bytes);
}
void *calloc(size_t count, size_t bytes) {
  allocations++;
  return __libc_calloc(count, bytes);
}
#endif

static struct ibv_cq_ex *cq;
static struct ibv_qp *qp[2];
static struct ibv_mr *mr;
static char memory[4096];

/* From here on the thread is killed if it calls the kernel for anything else. */
static void allow_nothing(void) {
#define ALLOW(number)                                  \
  BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, number, 0, 1),   \
  BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)
  struct sock_filter filter[] = {
      BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
      ALLOW(SYS_sched_yield), ALLOW(SYS_write), ALLOW(SYS_exit),
      /* The end of the thread. */
      ALLOW(SYS_madvise), ALLOW(SYS_rt_sigprocmask), ALLOW(SYS_futex), ALLOW(SYS_munmap),
      /* What the sanitizer does when a thread ends. */
      ALLOW(SYS_sigaltstack), ALLOW(SYS_mmap), ALLOW(SYS_gettid), ALLOW(SYS_exit_group),
      BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
  };
  struct sock_fprog program = {.len = sizeof filter / sizeof *filter, .filter = filter};
  CHECK(!prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "no_new_privs");
  CHECK(!prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program), "seccomp");
}

static void poll_fields(int expected) {
  struct ibv_poll_cq_attr attr = {0};
  for (int found = 0; found < expected;) {
    int status = ibv_start_poll(cq, &attr);
    if (status == ENOENT) continue;
    for (; !status; status = ibv_next_poll(cq)) {
      CHECK(cq->status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(cq->status));
      found++;
    }
    ibv_end_poll(cq);
  }
}

static void poll_all(int expected) {
  struct ibv_wc wc[BATCH];
  for (int found = 0; found < expected;) {
    int count = ibv_poll_cq(ibv_cq_ex_to_cq(cq), BATCH, wc);
    CHECK(count >= 0, "poll_cq: %d", count);
    for (int i = 0; i < count; i++) CHECK(wc[i].status == IBV_WC_SUCCESS, "%s", ibv_wc_status_str(wc[i].status));
    found += count;
  }
}

static void post_list(enum ibv_wr_opcode opcode, unsigned flags) {
  struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 16, .lkey = mr->lkey};
  struct ibv_send_wr wr[BATCH], *bad;
  memset(wr, 0, sizeof wr);
  for (int i = 0; i < BATCH; i++) {
    wr[i].wr_id = i;
    wr[i].next = i + 1 < BATCH ? &wr[i + 1] : NULL;
    wr[i].sg_list = &sge;
    wr[i].num_sge = 1;
    wr[i].opcode = opcode;
    wr[i].send_flags = IBV_SEND_SIGNALED | flags;
    wr[i].wr.rdma.remote_addr = (uintptr_t)memory;
    wr[i].wr.rdma.rkey = mr->rkey;
  }
  CHECK(!ibv_post_send(qp[0], wr, &bad), "post_send");
}

static void post_receives(void) {
  struct ibv_sge sge = {.addr = (uintptr_t)memory + 2048, .length = 64, .lkey = mr->lkey};
  struct ibv_recv_wr wr[BATCH], *bad;
  for (int i = 0; i < BATCH; i++)
    wr[i] = (struct ibv_recv_wr){.wr_id = i, .next = i + 1 < BATCH ? &wr[i + 1] : NULL, .sg_list = &sge, .num_sge = 1};
  CHECK(!ibv_post_recv(qp[1], wr, &bad), "post_recv");
}

static void build(void) {
  struct ibv_qp_ex *builder = ibv_qp_to_qp_ex(qp[0]);
  ibv_wr_start(builder);
  for (int i = 0; i < BATCH; i++) {
    builder->wr_id = i;
    builder->wr_flags = IBV_SEND_SIGNALED;
    ibv_wr_rdma_write(builder, mr->rkey, (uintptr_t)memory);
    if (i & 1)
      ibv_wr_set_sge(builder, mr->lkey, (uintptr_t)memory, 32);
    else
      ibv_wr_set_inline_data(builder, memory, 32);
  }
  CHECK(!ibv_wr_complete(builder), "wr_complete");
}

static void round_of_all(void) {
  post_list(IBV_WR_RDMA_WRITE, 0);
  poll_all(BATCH);
  post_list(IBV_WR_RDMA_WRITE, IBV_SEND_INLINE);
  poll_fields(BATCH);
  build();
  poll_all(BATCH);
  post_receives();
  post_list(IBV_WR_SEND, 0);
  poll_fields(2 * BATCH);
}

static void *run(void *ignored) {
  /* What grows once. */
  round_of_all();
  allow_nothing();
  allocations = 0;
  for (int i = 0; i < ROUNDS; i++) round_of_all();
  CHECK(!allocations, "%ld allocations", allocations);
  return ignored;
}

int main(void) {
  struct ibv_context *context = open_first();
  struct ibv_pd *pd = ibv_alloc_pd(context);
  struct ibv_cq_init_attr_ex init = {.cqe = 64};
  cq = ibv_create_cq_ex(context, &init);
  mr = ibv_reg_mr(pd, memory, sizeof memory, ALL);
  CHECK(pd && cq && mr, "a domain, a CQ, a region");
  for (int i = 0; i < 2; i++) {
    struct ibv_qp_init_attr_ex qp_init = {
        .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = IBV_QPT_RC, .pd = pd,
        .cap = {.max_send_wr = 64, .max_recv_wr = 64, .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = 64},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE};
    qp[i] = ibv_create_qp_ex(context, &qp_init);
    CHECK(qp[i], "create_qp_ex");
  }
  join_qps(context, qp[0], qp[1]);
  pthread_t thread;
  pthread_create(&thread, NULL, run, NULL);
  pthread_join(thread, NULL);
  for (int i = 0; i < 2; i++) CHECK(!ibv_destroy_qp(qp[i]), "destroy_qp");
  CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd), "destroy");
  CHECK(!ibv_close_device(context), "close_device");
  printf("calls: none in %d work requests\n", ROUNDS * 5 * BATCH);
  return 0;
}

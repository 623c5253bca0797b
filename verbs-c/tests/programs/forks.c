/* fork() while threads post and poll: a child that uses what it inherited is told EPERM and disturbs nobody, destroys its copies, opens the
 * device for itself; the parent goes on. Prints one line; ends with 1 if anything is wrong. Knows nothing of Ferroce. */
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <sys/wait.h>

#include "pair.h"

#define CHILDREN 10

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_comp_channel *channel;
static struct ibv_cq *cq;
static struct ibv_srq *srq;
static struct ibv_qp *qp[2];
static struct ibv_mr *mr;
static struct ibv_ah *ah;
static char memory[4096];
static atomic_bool done;
static atomic_long transferred;

static void *transfer(void *ignored) {
  while (!atomic_load(&done)) {
    CHECK(!post_write(qp[0], 3, mr, 512), "the parent's post_send");
    CHECK(complete(cq).status == IBV_WC_SUCCESS, "the parent's WRITE");
    atomic_fetch_add(&transferred, 1);
  }
  return ignored;
}

/* Everything that a child may try with what is its parent's. */
static void misuse(void) {
  struct ibv_wc wc;
  struct ibv_recv_wr recv = {.wr_id = 1}, *bad;
  struct ibv_device_attr attr;
  struct ibv_qp_attr qp_attr = {.qp_state = IBV_QPS_ERR};
  struct ibv_qp_init_attr init;
  CHECK(post_write(qp[0], 9, mr, 8) == EPERM, "post_send in a child");
  CHECK(ibv_post_recv(qp[0], &recv, &bad) == EPERM && bad == &recv, "post_recv in a child");
  CHECK(ibv_post_srq_recv(srq, &recv, &bad) == EPERM, "post_srq_recv in a child");
  CHECK(ibv_poll_cq(cq, 1, &wc) == -EPERM, "poll_cq in a child");
  CHECK(ibv_req_notify_cq(cq, 0) == EPERM, "req_notify_cq in a child");
  CHECK(ibv_resize_cq(cq, 4096) == EPERM, "resize_cq in a child");
  CHECK(ibv_query_device(context, &attr) == EPERM, "query_device in a child");
  CHECK(ibv_modify_qp(qp[0], &qp_attr, IBV_QP_STATE) == EPERM, "modify_qp in a child");
  CHECK(ibv_query_qp(qp[0], &qp_attr, IBV_QP_STATE, &init) == EPERM, "query_qp in a child");
  errno = 0;
  CHECK(!ibv_reg_mr(pd, memory, 64, 0) && errno == EPERM, "reg_mr in a child");
  errno = 0;
  CHECK(!ibv_alloc_pd(context) && errno == EPERM, "alloc_pd in a child");
  struct ibv_cq *told;
  void *ignored;
  struct ibv_async_event event;
  errno = 0;
  CHECK(ibv_get_cq_event(channel, &told, &ignored) == -1 && errno == EPERM, "get_cq_event in a child");
  errno = 0;
  CHECK(ibv_get_async_event(context, &event) == -1 && errno == EPERM, "get_async_event in a child");
}

/* Its copies go without a word to the parent's daemon. */
static void destroy_copies(void) {
  CHECK(!ibv_destroy_qp(qp[0]) && !ibv_destroy_qp(qp[1]), "destroy_qp in a child");
  CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_cq(cq) && !ibv_destroy_ah(ah), "destroy in a child");
  CHECK(!ibv_dereg_mr(mr), "dereg_mr in a child");
  CHECK(!ibv_close_device(context), "close_device in a child");
}

/* A session of the child's own. */
static void own_session(void) {
  struct ibv_context *own = open_first();
  struct ibv_pd *domain = ibv_alloc_pd(own);
  char *bytes = malloc(4096);
  struct ibv_mr *region = ibv_reg_mr(domain, bytes, 4096, ALL);
  struct ibv_cq *queue = ibv_create_cq(own, 4, NULL, NULL, 0);
  CHECK(domain && region && queue, "a child's own");
  struct ibv_qp *pair[2] = {new_qp(domain, queue, queue, 4), new_qp(domain, queue, queue, 4)};
  join_qps(own, pair[0], pair[1]);
  CHECK(!post_write(pair[0], 4, region, 1024), "a child's post_send");
  CHECK(complete(queue).status == IBV_WC_SUCCESS, "a child's WRITE");
  CHECK(!ibv_destroy_qp(pair[0]) && !ibv_destroy_qp(pair[1]) && !ibv_destroy_cq(queue), "a child's destroy");
  CHECK(!ibv_dereg_mr(region) && !ibv_dealloc_pd(domain) && !ibv_close_device(own), "a child's close_device");
  free(bytes);
}

static void in_child(int number) {
  alarm(30);
  misuse();
  if (number & 1) destroy_copies();
  if (number & 2) own_session();
#ifdef __SANITIZE_ADDRESS__
  /* What the library knows of a thread that only the parent has is never freed here. */
  _exit(0);
#endif
  exit(0);
}

int main(void) {
  CHECK(!ibv_fork_init(), "fork_init");
  CHECK(ibv_is_fork_initialized() == IBV_FORK_UNNEEDED, "is_fork_initialized");
  context = open_first();
  pd = ibv_alloc_pd(context);
  channel = ibv_create_comp_channel(context);
  cq = ibv_create_cq(context, 16, NULL, NULL, 0);
  struct ibv_srq_init_attr srq_init = {.attr = {.max_wr = 4, .max_sge = 1}};
  srq = ibv_create_srq(pd, &srq_init);
  mr = ibv_reg_mr(pd, memory, sizeof memory, ALL);
  union ibv_gid gid;
  CHECK(!ibv_query_gid(context, 1, 0, &gid), "GID 0");
  struct ibv_ah_attr path = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid}};
  ah = ibv_create_ah(pd, &path);
  CHECK(pd && channel && cq && srq && mr && ah, "the parent's own");
  for (int i = 0; i < 2; i++) qp[i] = new_qp(pd, cq, cq, 8);
  join_qps(context, qp[0], qp[1]);
  pthread_t thread;
  pthread_create(&thread, NULL, transfer, NULL);
  for (int i = 0; i < CHILDREN; i++) {
    pid_t child = fork();
    CHECK(child >= 0, "fork");
    if (!child) in_child(i);
    long before = atomic_load(&transferred);
    int status;
    CHECK(waitpid(child, &status, 0) == child && WIFEXITED(status) && !WEXITSTATUS(status), "child %d: status %x", i, status);
    for (time_t end = time(NULL) + 20; atomic_load(&transferred) < before + 10;)
      CHECK(time(NULL) < end, "the parent goes on after child %d", i);
  }
  atomic_store(&done, 1);
  pthread_join(thread, NULL);
  for (int i = 0; i < 2; i++) CHECK(!ibv_destroy_qp(qp[i]), "destroy_qp");
  CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_cq(cq) && !ibv_destroy_comp_channel(channel), "destroy");
  CHECK(!ibv_destroy_ah(ah) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "close_device");
  printf("forks: %d children, the parent went on\n", CHILDREN);
  return 0;
}

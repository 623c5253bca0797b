/* Objects in the hands of many threads: several post to one QP and poll one CQ, in both ways, others sleep on a channel, others make and
 * destroy all the while. Nothing is lost, nothing comes twice. Prints one line; ends with 1 if anything is wrong. Knows nothing of
 * Ferroce. */
#include <pthread.h>
#include <stdatomic.h>

#include "pair.h"

#define POSTERS 4
#define EACH 2000
#define CHURNERS 2
#define SLEEPERS 2

static struct ibv_context *context;
static struct ibv_pd *pd;
static struct ibv_cq_ex *cq;
static struct ibv_comp_channel *channel;
static struct ibv_qp *qp[2];
static struct ibv_mr *mr;
static char memory[4096];
static atomic_uchar seen[POSTERS][EACH];
static atomic_int found, churned, awake;
static atomic_bool done;

static void count(uint64_t wr_id, enum ibv_wc_status status) {
  CHECK(status == IBV_WC_SUCCESS, "wr_id %lx: %s", wr_id, ibv_wc_status_str(status));
  CHECK(wr_id >> 32 < POSTERS && (uint32_t)wr_id < EACH, "wr_id %lx", wr_id);
  CHECK(!atomic_exchange(&seen[wr_id >> 32][(uint32_t)wr_id], 1), "wr_id %lx came twice", wr_id);
  if (atomic_fetch_add(&found, 1) + 1 == POSTERS * EACH) atomic_store(&done, 1);
}

static void poll_some(int fields) {
  if (fields) {
    struct ibv_poll_cq_attr attr = {0};
    int status = ibv_start_poll(cq, &attr);
    if (status == ENOENT) return;
    for (; !status; status = ibv_next_poll(cq)) {
      uint64_t wr_id = cq->wr_id;
      CHECK(ibv_wc_read_qp_num(cq) == qp[0]->qp_num, "QP %u", ibv_wc_read_qp_num(cq));
      count(wr_id, cq->status);
    }
    CHECK(status == ENOENT, "next_poll: %d", status);
    ibv_end_poll(cq);
    return;
  }
  struct ibv_wc wc[7];
  int got = ibv_poll_cq(ibv_cq_ex_to_cq(cq), 7, wc);
  CHECK(got >= 0, "poll_cq: %d", got);
  for (int i = 0; i < got; i++) count(wc[i].wr_id, wc[i].status);
}

static void *post(void *number) {
  uint64_t who = (uintptr_t)number;
  struct ibv_qp_ex *builder = ibv_qp_to_qp_ex(qp[0]);
  CHECK(builder, "qp_to_qp_ex");
  for (uint64_t i = 0; i < EACH;) {
    int status;
    if (who & 1) {
      ibv_wr_start(builder);
      builder->wr_id = who << 32 | i;
      builder->wr_flags = IBV_SEND_SIGNALED;
      ibv_wr_rdma_write(builder, mr->rkey, (uintptr_t)memory);
      ibv_wr_set_sge(builder, mr->lkey, (uintptr_t)memory, 8);
      status = ibv_wr_complete(builder);
    } else {
      status = post_write(qp[0], who << 32 | i, mr, 8);
    }
    CHECK(!status || status == ENOMEM, "post: %s", strerror(status));
    if (!status) i++;
    if (status || i % 8 == 0) poll_some(who & 2);
  }
  while (!atomic_load(&done)) poll_some(who & 2);
  return NULL;
}

static void *churn(void *number) {
  char *own = malloc(8192);
  while (!atomic_load(&done)) {
    struct ibv_mr *region = ibv_reg_mr(pd, own, 8192, ALL);
    struct ibv_cq *other = ibv_create_cq(context, 8, number, NULL, 0);
    CHECK(region && other, "reg_mr, create_cq");
    struct ibv_qp *pair[2] = {new_qp(pd, other, other, 4), new_qp(pd, other, other, 4)};
    join_qps(context, pair[0], pair[1]);
    CHECK(!post_write(pair[0], 5, region, 4096), "post_send");
    struct ibv_wc wc = complete(other);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == 5, "a WRITE of its own: %s", ibv_wc_status_str(wc.status));
    CHECK(!ibv_resize_cq(other, 64), "resize_cq");
    CHECK(!ibv_destroy_qp(pair[1]) && !ibv_destroy_qp(pair[0]), "destroy_qp");
    CHECK(!ibv_destroy_cq(other) && !ibv_dereg_mr(region), "destroy_cq, dereg_mr");
    atomic_fetch_add(&churned, 1);
  }
  free(own);
  return NULL;
}

/* Each event goes to one of them; the last ones are made by main. */
static void *sleep_on_channel(void *events) {
  struct ibv_cq *told;
  void *ignored;
  while (!atomic_load(&done)) {
    CHECK(!ibv_get_cq_event(channel, &told, &ignored) && told == ibv_cq_ex_to_cq(cq), "get_cq_event");
    ibv_ack_cq_events(told, 1);
    atomic_fetch_add((atomic_int *)events, 1);
    CHECK(!ibv_req_notify_cq(told, 0), "req_notify_cq");
  }
  atomic_fetch_add(&awake, 1);
  return NULL;
}

int main(void) {
  static atomic_int events;
  context = open_first();
  pd = ibv_alloc_pd(context);
  channel = ibv_create_comp_channel(context);
  struct ibv_cq_init_attr_ex init = {.cqe = 512, .channel = channel, .wc_flags = IBV_WC_EX_WITH_QP_NUM};
  cq = ibv_create_cq_ex(context, &init);
  mr = ibv_reg_mr(pd, memory, sizeof memory, ALL);
  CHECK(pd && channel && cq && mr, "what all threads share");
  for (int i = 0; i < 2; i++) {
    struct ibv_qp_init_attr_ex qp_init = {
        .send_cq = ibv_cq_ex_to_cq(cq), .recv_cq = ibv_cq_ex_to_cq(cq), .qp_type = IBV_QPT_RC, .pd = pd,
        .cap = {.max_send_wr = 64, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1},
        .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS, .send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE};
    qp[i] = ibv_create_qp_ex(context, &qp_init);
    CHECK(qp[i], "create_qp_ex");
  }
  join_qps(context, qp[0], qp[1]);
  CHECK(!ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0), "req_notify_cq");
  pthread_t threads[POSTERS + CHURNERS], sleepers[SLEEPERS];
  for (uintptr_t i = 0; i < SLEEPERS; i++) pthread_create(&sleepers[i], NULL, sleep_on_channel, &events);
  for (uintptr_t i = 0; i < POSTERS + CHURNERS; i++)
    pthread_create(&threads[i], NULL, i < POSTERS ? post : churn, (void *)i);
  for (int i = 0; i < POSTERS + CHURNERS; i++) pthread_join(threads[i], NULL);
  CHECK(atomic_load(&found) == POSTERS * EACH, "%d completions", atomic_load(&found));
  /* Events until none of them sleeps: which of them an event wakes nobody can tell. */
  for (time_t end = time(NULL) + 20; atomic_load(&awake) < SLEEPERS;) {
    CHECK(time(NULL) < end, "%d of %d have heard of the end", atomic_load(&awake), SLEEPERS);
    CHECK(!ibv_req_notify_cq(ibv_cq_ex_to_cq(cq), 0) && !post_write(qp[0], 0, mr, 8), "the end");
    CHECK(complete(ibv_cq_ex_to_cq(cq)).status == IBV_WC_SUCCESS, "the last");
  }
  for (int i = 0; i < SLEEPERS; i++) pthread_join(sleepers[i], NULL);
  for (int i = 0; i < 2; i++) CHECK(!ibv_destroy_qp(qp[i]), "destroy_qp");
  CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)) && !ibv_destroy_comp_channel(channel), "destroy_cq");
  CHECK(!ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd) && !ibv_close_device(context), "close_device");
  printf("threads: %d completions, %d events, %d QPs come and gone\n", POSTERS * EACH, atomic_load(&events),
         2 * atomic_load(&churned));
  return 0;
}

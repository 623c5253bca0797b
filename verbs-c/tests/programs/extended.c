/* The extended verbs: times of completions, a CQ that grows, extended reliable connections, and what is said of what is not offered.
 * Prints one line a part; ends with 1 at the first that is not as it should be. Knows nothing of Ferroce. */
#include <fcntl.h>

#include "pair.h"

static struct ibv_context *context;
static struct ibv_pd *pd;
static char memory[4096];

static uint64_t wallclock_ns(void) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  return (uint64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static uint64_t raw_clock(void) {
  struct ibv_values_ex values = {.comp_mask = IBV_VALUES_MASK_RAW_CLOCK};
  CHECK(!ibv_query_rt_values_ex(context, &values), "query_rt_values_ex");
  CHECK(values.comp_mask == IBV_VALUES_MASK_RAW_CLOCK, "the clock is not told");
  return values.raw_clock.tv_nsec;
}

/* Completions lie in time between two looks at the clock, by either clock, and in their order. */
static void times(struct ibv_mr *mr) {
  struct ibv_device_attr_ex attr;
  CHECK(!ibv_query_device_ex(context, NULL, &attr), "query_device_ex");
  if (!attr.completion_timestamp_mask) {
    printf("times: not offered\n");
    return;
  }
  CHECK(attr.hca_core_clock == 1000000, "hca_core_clock %lu", attr.hca_core_clock);
  struct ibv_cq_init_attr_ex init = {
      .cqe = 16,
      .wc_flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK};
  struct ibv_cq_ex *cq = ibv_create_cq_ex(context, &init);
  CHECK(cq, "create_cq_ex");
  struct ibv_qp *qp[2];
  for (int i = 0; i < 2; i++) qp[i] = new_qp(pd, ibv_cq_ex_to_cq(cq), ibv_cq_ex_to_cq(cq), 16);
  join_qps(context, qp[0], qp[1]);
  uint64_t before = raw_clock(), before_ns = wallclock_ns();
  for (uint64_t i = 0; i < 10; i++) CHECK(!post_write(qp[0], i, mr, 64), "post_send");
  uint64_t last = before, found = 0;
  for (time_t end = time(NULL) + 20; found < 10 && time(NULL) < end;) {
    struct ibv_poll_cq_attr poll = {0};
    int status = ibv_start_poll(cq, &poll);
    if (status == ENOENT) continue;
    while (!status) {
      CHECK(cq->status == IBV_WC_SUCCESS && cq->wr_id == found, "completion %lu", found);
      uint64_t made = ibv_wc_read_completion_ts(cq), made_ns = ibv_wc_read_completion_wallclock_ns(cq);
      CHECK(made >= last && made <= raw_clock(), "made at %lu, the one before at %lu", made, last);
      /* The clocks are read one after the other, and run differently fast by a little. */
      CHECK(made_ns + 50000000 >= before_ns && made_ns <= wallclock_ns() + 50000000, "made at %lu ns", made_ns);
      last = made;
      found++;
      status = ibv_next_poll(cq);
    }
    CHECK(status == ENOENT, "next_poll: %d", status);
    ibv_end_poll(cq);
  }
  CHECK(found == 10, "%lu completions", found);
  init.wc_flags = IBV_WC_EX_WITH_FLOW_TAG;
  CHECK(!ibv_create_cq_ex(context, &init) && errno == EOPNOTSUPP, "flow tags");
  for (int i = 0; i < 2; i++) CHECK(!ibv_destroy_qp(qp[i]), "destroy_qp");
  CHECK(!ibv_destroy_cq(ibv_cq_ex_to_cq(cq)), "destroy_cq");
  printf("times: right\n");
}

/* A CQ that is full grows, and takes as many more; what was asked of its channel is still done. */
static void growth(struct ibv_mr *mr) {
  struct ibv_comp_channel *channel = ibv_create_comp_channel(context);
  struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, channel, 0), *other = ibv_create_cq(context, 4, NULL, NULL, 0);
  CHECK(channel && cq && other, "create_cq");
  int small = cq->cqe;
  struct ibv_qp *qp[2] = {new_qp(pd, cq, other, 256), new_qp(pd, other, other, 1)};
  join_qps(context, qp[0], qp[1]);
  CHECK(!ibv_req_notify_cq(cq, 0), "req_notify_cq");
  for (int i = 0; i < small; i++) CHECK(!post_write(qp[0], i, mr, 8), "post_send");
  struct ibv_cq *told;
  void *ignored;
  CHECK(!ibv_get_cq_event(channel, &told, &ignored) && told == cq, "get_cq_event");
  CHECK(!ibv_req_notify_cq(cq, 0), "req_notify_cq");
  CHECK(!ibv_resize_cq(cq, 200) && cq->cqe >= 200, "resize_cq");
  for (int i = small; i < 200; i++) CHECK(!post_write(qp[0], i, mr, 8), "post_send");
  CHECK(!ibv_get_cq_event(channel, &told, &ignored) && told == cq, "get_cq_event after the growth");
  for (int i = 0; i < 200; i++) {
    struct ibv_wc wc = complete(cq);
    CHECK(wc.status == IBV_WC_SUCCESS && wc.wr_id == (uint64_t)i, "completion %d is %lu", i, wc.wr_id);
  }
  CHECK(ibv_resize_cq(cq, 0) == EINVAL && ibv_resize_cq(cq, 1 << 30) == EINVAL, "resize_cq out of range");
  ibv_ack_cq_events(cq, 2);
  for (int i = 0; i < 2; i++) CHECK(!ibv_destroy_qp(qp[i]), "destroy_qp");
  CHECK(!ibv_destroy_cq(cq) && !ibv_destroy_cq(other) && !ibv_destroy_comp_channel(channel), "destroy");
  printf("growth: right\n");
}

/* One connection reaches an SRQ; another session has opened its receiving QP too. */
static void xrc(struct ibv_mr *mr) {
  char name[] = "/tmp/ferroce-xrcd-XXXXXX";
  int file = mkstemp(name);
  CHECK(file >= 0, "a file");
  struct ibv_xrcd_init_attr attr = {.comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = file};
  CHECK(!ibv_open_xrcd(context, &attr) && errno == EAGAIN, "a domain that nobody made");
  struct ibv_cq *cq = ibv_create_cq(context, 16, NULL, NULL, 0);
  attr.oflags = O_CREAT;
  struct ibv_xrcd *xrcd = ibv_open_xrcd(context, &attr);
  CHECK(xrcd && cq, "open_xrcd");
  struct ibv_srq_init_attr_ex srq_init = {
      .attr = {.max_wr = 8, .max_sge = 1}, .srq_type = IBV_SRQT_XRC, .pd = pd, .xrcd = xrcd, .cq = cq,
      .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD | IBV_SRQ_INIT_ATTR_CQ};
  struct ibv_srq *srq = ibv_create_srq_ex(context, &srq_init);
  uint32_t srqn;
  CHECK(srq && !ibv_get_srq_num(srq, &srqn), "create_srq_ex");
  struct ibv_qp_init_attr_ex recv_init = {
      .qp_type = IBV_QPT_XRC_RECV, .xrcd = xrcd, .comp_mask = IBV_QP_INIT_ATTR_XRCD};
  struct ibv_qp *receiver = ibv_create_qp_ex(context, &recv_init);
  CHECK(receiver && !receiver->send_cq && !receiver->pd, "create_qp_ex, XRC_RECV");
  struct ibv_qp_init_attr_ex send_init = {.qp_type = IBV_QPT_XRC_SEND, .send_cq = cq, .pd = pd,
                                          .cap = {.max_send_wr = 8, .max_send_sge = 1},
                                          .comp_mask = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS,
                                          .send_ops_flags = IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_RDMA_WRITE};
  struct ibv_qp *sender = ibv_create_qp_ex(context, &send_init);
  CHECK(sender, "create_qp_ex, XRC_SEND");
  join_qps(context, sender, receiver);
  /* What has no queues takes nothing. */
  struct ibv_recv_wr *bad_recv;
  struct ibv_sge sge = {.addr = (uintptr_t)memory + 2048, .length = 64, .lkey = mr->lkey};
  struct ibv_recv_wr recv = {.wr_id = 7, .sg_list = &sge, .num_sge = 1};
  CHECK(ibv_post_recv(receiver, &recv, &bad_recv) == EINVAL, "post_recv to a receiver without a queue");
  CHECK(post_write(receiver, 1, mr, 8) == EINVAL, "post_send to it");
  CHECK(!ibv_post_srq_recv(srq, &recv, &bad_recv), "post_srq_recv");
  /* The same QP, of another session. */
  struct ibv_context *second = open_first();
  attr.oflags = 0;
  struct ibv_xrcd *again = ibv_open_xrcd(second, &attr);
  CHECK(again, "open_xrcd of another session");
  struct ibv_qp_open_attr open = {.qp_num = receiver->qp_num, .xrcd = again, .qp_type = IBV_QPT_XRC_RECV,
                                  .comp_mask = IBV_QP_OPEN_ATTR_NUM | IBV_QP_OPEN_ATTR_XRCD | IBV_QP_OPEN_ATTR_TYPE};
  struct ibv_qp *opened = ibv_open_qp(second, &open);
  CHECK(opened && opened->qp_num == receiver->qp_num, "open_qp");
  CHECK(ibv_close_xrcd(again) == EBUSY && ibv_close_xrcd(xrcd) == EBUSY, "a domain in use");
  CHECK(!ibv_destroy_qp(receiver), "destroy_qp");
  /* It lives on. A SEND by either way to post. */
  strcpy(memory, "through XRC");
  sge.addr = (uintptr_t)memory;
  struct ibv_send_wr send = {.wr_id = 8, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_SEND,
                             .send_flags = IBV_SEND_SIGNALED},
                     *bad;
  send.qp_type.xrc.remote_srqn = srqn;
  CHECK(!ibv_post_send(sender, &send, &bad), "post_send");
  for (int i = 0, both = 0; i < 2; i++) {
    struct ibv_wc wc = complete(cq);
    CHECK(wc.status == IBV_WC_SUCCESS && (wc.wr_id == 7 || wc.wr_id == 8), "completion %lu: %d", wc.wr_id, wc.status);
    if (wc.wr_id == 7) CHECK(wc.qp_num == opened->qp_num && wc.byte_len == 64, "of QP %u", wc.qp_num);
    both |= wc.wr_id == 7 ? 1 : 2;
    CHECK(i == 0 || both == 3, "one came twice");
  }
  CHECK(!strcmp(memory + 2048, "through XRC"), "other bytes came");
  struct ibv_qp_ex *builder = ibv_qp_to_qp_ex(sender);
  CHECK(builder, "qp_to_qp_ex");
  ibv_wr_start(builder);
  builder->wr_id = 9;
  builder->wr_flags = IBV_SEND_SIGNALED;
  ibv_wr_rdma_write(builder, mr->rkey, (uintptr_t)memory + 1024);
  ibv_wr_set_xrc_srqn(builder, srqn);
  ibv_wr_set_sge(builder, mr->lkey, (uintptr_t)memory, 64);
  CHECK(!ibv_wr_complete(builder), "wr_complete");
  CHECK(complete(cq).status == IBV_WC_SUCCESS && !strcmp(memory + 1024, "through XRC"), "the WRITE");
  CHECK(!ibv_destroy_qp(opened) && !ibv_destroy_qp(sender), "destroy_qp");
  CHECK(!ibv_destroy_srq(srq) && !ibv_destroy_cq(cq) && !ibv_close_xrcd(xrcd) && !ibv_close_xrcd(again), "the rest");
  CHECK(!ibv_close_device(second) && !close(file) && !unlink(name), "close");
  printf("xrc: right\n");
}

/* What is not offered says so, by the errno of its manual page. */
static void not_offered(struct ibv_mr *mr, struct ibv_qp *qp) {
#define NOT_OFFERED(call) \
  errno = 0;              \
  CHECK(!(call) && errno == EOPNOTSUPP, "%s", #call)
  NOT_OFFERED(ibv_import_device(0));
  NOT_OFFERED(ibv_import_pd(context, 1));
  NOT_OFFERED(ibv_import_mr(pd, 1));
  NOT_OFFERED(ibv_import_dm(context, 1));
  NOT_OFFERED(ibv_reg_dmabuf_mr(pd, 0, 4096, 0, 0, 0));
  struct ibv_alloc_dm_attr dm = {.length = 64};
  NOT_OFFERED(ibv_alloc_dm(context, &dm));
  struct ibv_wq_init_attr wq = {.wq_type = IBV_WQT_RQ};
  NOT_OFFERED(ibv_create_wq(context, &wq));
  NOT_OFFERED(ibv_alloc_null_mr(pd));
  struct ibv_counters_init_attr counters = {0};
  NOT_OFFERED(ibv_create_counters(context, &counters));
  struct ibv_flow_attr flow = {0};
  NOT_OFFERED(ibv_create_flow(qp, &flow));
  struct ibv_qp_init_attr raw = {.send_cq = qp->send_cq, .recv_cq = qp->recv_cq, .qp_type = IBV_QPT_RAW_PACKET,
                                 .cap = {.max_send_wr = 1, .max_recv_wr = 1}};
  NOT_OFFERED(ibv_create_qp(pd, &raw));
  struct ibv_modify_cq_attr moderation = {.attr_mask = IBV_CQ_ATTR_MODERATE};
  CHECK(ibv_modify_cq(qp->send_cq, &moderation) == EOPNOTSUPP, "modify_cq");
  struct ibv_sge sge = {.addr = (uintptr_t)memory, .length = 64, .lkey = mr->lkey};
  CHECK(ibv_advise_mr(pd, IBV_ADVISE_MR_ADVICE_PREFETCH, 0, &sge, 1) == EOPNOTSUPP, "advise_mr");
  CHECK(!ibv_query_qp_data_in_order(qp, IBV_WR_RDMA_WRITE, 0), "data in order is not promised");
  /* Datagrams have nothing to agree upon (what connections have: ece.c). */
  struct ibv_qp_init_attr datagrams = {.send_cq = qp->send_cq, .recv_cq = qp->recv_cq, .qp_type = IBV_QPT_UD,
                                       .cap = {.max_send_wr = 1, .max_recv_wr = 1, .max_send_sge = 1, .max_recv_sge = 1}};
  struct ibv_qp *ud = ibv_create_qp(pd, &datagrams);
  struct ibv_ece ece;
  CHECK(ud && !ibv_query_ece(ud, &ece) && ece.vendor_id && !ece.options, "query_ece of UD");
  ece.options = 1;
  CHECK(!ibv_set_ece(ud, &ece) && !ece.options && !ibv_destroy_qp(ud), "set_ece of UD");
  printf("not offered: said\n");
}

int main(void) {
  context = open_first();
  pd = ibv_alloc_pd(context);
  struct ibv_mr *mr = ibv_reg_mr(pd, memory, sizeof memory, ALL);
  struct ibv_cq *cq = ibv_create_cq(context, 4, NULL, NULL, 0);
  CHECK(pd && mr && cq, "a domain, a region, a CQ");
  struct ibv_qp *qp = new_qp(pd, cq, cq, 4);
  times(mr);
  growth(mr);
  xrc(mr);
  not_offered(mr, qp);
  CHECK(!ibv_destroy_qp(qp) && !ibv_destroy_cq(cq) && !ibv_dereg_mr(mr) && !ibv_dealloc_pd(pd), "the end");
  CHECK(!ibv_close_device(context), "close_device");
  return 0;
}

/* What the programs of this folder have in common: two RC QPs of a process, each the other's peer, over the first device. */
#ifndef PAIR_H
#define PAIR_H

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <infiniband/verbs.h>

#define ALL (IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC)
/* Ends the program, with a sentence, unless the condition holds. */
#define CHECK(condition, ...)                                          \
  do {                                                                 \
    if (!(condition)) {                                                \
      int seen_errno = errno;                                          \
      fprintf(stderr, "line %d: ", __LINE__);                          \
      fprintf(stderr, __VA_ARGS__);                                    \
      fprintf(stderr, " (errno %s)\n", strerror(seen_errno));          \
      exit(1);                                                         \
    }                                                                  \
  } while (0)

static inline struct ibv_context *open_first(void) {
  struct ibv_device **list = ibv_get_device_list(NULL);
  CHECK(list && list[0], "no device");
  struct ibv_context *context = ibv_open_device(list[0]);
  CHECK(context, "open_device");
  ibv_free_device_list(list);
  return context;
}

/* INIT, RTR, RTS: what of it a QP of this type takes. */
static inline void to_rts(struct ibv_qp *qp, uint32_t peer, const union ibv_gid *gid) {
  struct ibv_qp_attr attr = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = ALL};
  int mask = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS;
  CHECK(!ibv_modify_qp(qp, &attr, mask), "INIT");
  struct ibv_qp_attr rtr = {.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = peer,
                            .max_dest_rd_atomic = 4, .min_rnr_timer = 12,
                            .ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *gid, .hop_limit = 64}}};
  mask = IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
  if (qp->qp_type != IBV_QPT_XRC_SEND) mask |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
  CHECK(!ibv_modify_qp(qp, &rtr, mask), "RTR");
  if (qp->qp_type == IBV_QPT_XRC_RECV) return;
  struct ibv_qp_attr rts = {.qp_state = IBV_QPS_RTS, .timeout = 14, .retry_cnt = 7, .rnr_retry = 7, .max_rd_atomic = 4};
  mask = IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN | IBV_QP_MAX_QP_RD_ATOMIC;
  CHECK(!ibv_modify_qp(qp, &rts, mask), "RTS");
}

static inline struct ibv_qp *new_qp(struct ibv_pd *pd, struct ibv_cq *send_cq, struct ibv_cq *recv_cq, uint32_t depth) {
  struct ibv_qp_init_attr init = {
      .send_cq = send_cq, .recv_cq = recv_cq, .qp_type = IBV_QPT_RC,
      .cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1}};
  struct ibv_qp *qp = ibv_create_qp(pd, &init);
  CHECK(qp, "create_qp");
  return qp;
}

static inline void join_qps(struct ibv_context *context, struct ibv_qp *one, struct ibv_qp *other) {
  union ibv_gid gid;
  CHECK(!ibv_query_gid(context, 1, 0, &gid), "GID 0");
  to_rts(one, other->qp_num, &gid);
  to_rts(other, one->qp_num, &gid);
}

/* Waits for a completion, at most 20 s. */
static inline struct ibv_wc complete(struct ibv_cq *cq) {
  struct ibv_wc wc;
  for (time_t end = time(NULL) + 20; time(NULL) < end;) {
    int count = ibv_poll_cq(cq, 1, &wc);
    CHECK(count >= 0, "poll_cq: %d", count);
    if (count) return wc;
  }
  CHECK(0, "no completion");
}

/* Posts one signalled RDMA WRITE of some bytes; the errno of the verb. */
static inline int post_write(struct ibv_qp *qp, uint64_t wr_id, struct ibv_mr *mr, uint32_t length) {
  struct ibv_sge sge = {.addr = (uintptr_t)mr->addr, .length = length, .lkey = mr->lkey};
  struct ibv_send_wr wr = {.wr_id = wr_id, .sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE,
                           .send_flags = IBV_SEND_SIGNALED},
                     *bad;
  wr.wr.rdma.remote_addr = (uintptr_t)mr->addr;
  wr.wr.rdma.rkey = mr->rkey;
  return ibv_post_send(qp, &wr, &bad);
}

#endif

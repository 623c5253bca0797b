/* Enhanced connection establishment: two QPs, over the first and the last device, that agree on what both can do: told each other by
 * the program (as over a socket), then by the connection manager, for QPs that the program connects itself, then for the library's own.
 * Prints one line a part; ends with 1 at the first that is not as it should be. Knows nothing of Ferroce. */
#include <arpa/inet.h>
#include <netinet/in.h>

#include <rdma/rdma_cma.h>

#include "pair.h"

/* A device, and a QP of it. */
struct end {
  struct ibv_context *context;
  struct ibv_pd *pd;
  struct ibv_cq *cq;
  struct ibv_mr *mr;
  struct ibv_qp *qp;
  union ibv_gid gid;
  struct sockaddr_in address;
  char memory[4096];
};

static struct end ends[2];

static void open_end(struct end *end, struct ibv_device *device) {
  end->context = ibv_open_device(device);
  CHECK(end->context && !ibv_query_gid(end->context, 1, 0, &end->gid), "open_device");
  end->pd = ibv_alloc_pd(end->context);
  end->cq = ibv_create_cq(end->context, 64, NULL, NULL, 0);
  end->mr = ibv_reg_mr(end->pd, end->memory, sizeof(end->memory), ALL);
  CHECK(end->pd && end->cq && end->mr, "objects");
  /* GID 0 is an IPv4 address, mapped. */
  end->address.sin_family = AF_INET;
  memcpy(&end->address.sin_addr, end->gid.raw + 12, 4);
}

static struct ibv_ece query(struct ibv_qp *qp) {
  struct ibv_ece ece = {.vendor_id = 1, .options = 1, .comp_mask = 1};
  CHECK(!ibv_query_ece(qp, &ece), "query_ece");
  CHECK(ece.vendor_id && !ece.comp_mask, "query_ece: vendor %#x, comp_mask %#x", ece.vendor_id, ece.comp_mask);
  return ece;
}

static struct ibv_ece set(struct ibv_qp *qp, struct ibv_ece ece) {
  CHECK(!ibv_set_ece(qp, &ece), "set_ece of vendor %#x, options %#x", ece.vendor_id, ece.options);
  return ece;
}

/* A WRITE from the first to the second. */
static void transfer(void) {
  static int round;
  snprintf(ends[0].memory, 64, "round %d", ++round);
  struct ibv_sge sge = {.addr = (uintptr_t)ends[0].memory, .length = 64, .lkey = ends[0].mr->lkey};
  struct ibv_send_wr wr = {.sg_list = &sge, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .send_flags = IBV_SEND_SIGNALED}, *bad;
  wr.wr.rdma.remote_addr = (uintptr_t)ends[1].memory;
  wr.wr.rdma.rkey = ends[1].mr->rkey;
  CHECK(!ibv_post_send(ends[0].qp, &wr, &bad), "post_send");
  CHECK(complete(ends[0].cq).status == IBV_WC_SUCCESS, "a completion");
  CHECK(!strcmp(ends[0].memory, ends[1].memory), "other bytes came");
}

static void make_qps(void) {
  for (int i = 0; i < 2; i++) ends[i].qp = new_qp(ends[i].pd, ends[i].cq, ends[i].cq, 16);
}

static void by_hand(void) {
  make_qps();
  struct ibv_ece told[2] = {query(ends[0].qp), query(ends[1].qp)};
  CHECK(told[0].options, "the device can do nothing beyond the specification");
  for (int i = 0; i < 2; i++) {
    struct ibv_ece other = {.vendor_id = 0x15b3, .options = 1}, none = {0}, unknown = told[1 - i];
    unknown.comp_mask = 1;
    CHECK(ibv_set_ece(ends[i].qp, &other) == EINVAL, "options of another vendor");
    CHECK(ibv_set_ece(ends[i].qp, &none) == EOPNOTSUPP, "a peer without options");
    CHECK(ibv_set_ece(ends[i].qp, &unknown) == EINVAL, "unknown fields");
    /* Of options that the device does not know none is accepted. */
    struct ibv_ece all = {.vendor_id = told[i].vendor_id, .options = ~0u};
    CHECK(set(ends[i].qp, all).options == told[i].options, "options that nobody has");
    struct ibv_ece agreed = set(ends[i].qp, told[1 - i]);
    CHECK(agreed.options == (told[0].options & told[1].options), "agreed on %#x", agreed.options);
    CHECK(query(ends[i].qp).options == agreed.options, "query_ece after set_ece");
  }
  for (int i = 0; i < 2; i++) to_rts(ends[i].qp, ends[1 - i].qp->qp_num, &ends[1 - i].gid);
  transfer();
  CHECK(ibv_set_ece(ends[0].qp, &told[1]) == EINVAL, "set_ece in RTS");
  struct ibv_qp_attr reset = {.qp_state = IBV_QPS_RESET};
  CHECK(!ibv_modify_qp(ends[0].qp, &reset, IBV_QP_STATE), "RESET");
  /* A peer that has the vendor and no options: nothing is agreed. */
  struct ibv_ece nothing = {.vendor_id = told[0].vendor_id};
  CHECK(!set(ends[0].qp, nothing).options && !query(ends[0].qp).options, "something was agreed on");
  CHECK(!ibv_modify_qp(ends[0].qp, &reset, IBV_QP_STATE), "RESET");
  CHECK(query(ends[0].qp).options == told[0].options, "query_ece after a reset");
  for (int i = 0; i < 2; i++) CHECK(!ibv_destroy_qp(ends[i].qp), "destroy_qp");
  printf("by hand: vendor %#x, options %#x\n", told[0].vendor_id, told[0].options);
}

static struct rdma_event_channel *channel;

/* The next event of a type: its id. */
static struct rdma_cm_id *expect(enum rdma_cm_event_type type, struct rdma_cm_id **child) {
  struct rdma_cm_event *event;
  CHECK(!rdma_get_cm_event(channel, &event), "get_cm_event");
  CHECK(event->event == type, "%s: %d", rdma_event_str(event->event), event->status);
  struct rdma_cm_id *id = event->listen_id ? event->listen_id : event->id;
  if (child) *child = event->id;
  CHECK(!rdma_ack_cm_event(event), "ack_cm_event");
  return id;
}

/* The steps of a QP that the id does not have. */
static void modify(struct rdma_cm_id *id, struct ibv_qp *qp, enum ibv_qp_state state) {
  struct ibv_qp_attr attr = {.qp_state = state};
  int mask;
  CHECK(!rdma_init_qp_attr(id, &attr, &mask) && !ibv_modify_qp(qp, &attr, mask), "to state %d", state);
}

static struct ibv_ece remote(struct rdma_cm_id *id) {
  struct ibv_ece ece = {.comp_mask = 1};
  CHECK(!rdma_get_remote_ece(id, &ece) && !ece.comp_mask, "get_remote_ece");
  return ece;
}

/* A listener on the second device, and an id of the first that has a route to it. */
static struct rdma_cm_id *listener, *client;

static void resolve(void) {
  struct sockaddr_in to = ends[1].address;
  to.sin_port = htons(7199);
  CHECK(!rdma_create_id(channel, &listener, NULL, RDMA_PS_TCP) && !rdma_create_id(channel, &client, NULL, RDMA_PS_TCP), "create_id");
  CHECK(!rdma_bind_addr(listener, (struct sockaddr *)&to) && !rdma_listen(listener, 1), "listen");
  CHECK(!rdma_resolve_addr(client, (struct sockaddr *)&ends[0].address, (struct sockaddr *)&to, 5000), "resolve_addr");
  expect(RDMA_CM_EVENT_ADDR_RESOLVED, NULL);
  CHECK(!rdma_resolve_route(client, 5000), "resolve_route");
  expect(RDMA_CM_EVENT_ROUTE_RESOLVED, NULL);
}

static void disconnect(struct rdma_cm_id *server) {
  CHECK(!rdma_disconnect(client) && !rdma_disconnect(server), "disconnect");
  CHECK(!rdma_destroy_id(client) && !rdma_destroy_id(server) && !rdma_destroy_id(listener), "destroy_id");
}

/* With QPs of the program's own, in the order of the manual pages. The client offers `offer`, or leaves it to the library. */
static void external(struct ibv_ece *offer, uint32_t agreed) {
  make_qps();
  resolve();
  struct ibv_ece own = query(ends[0].qp), nobody = {0}, ignored;
  CHECK(rdma_set_local_ece(client, &nobody) == -1 && errno == EINVAL, "options of nobody");
  CHECK(!remote(client).vendor_id, "the peer has not spoken yet");
  if (offer) CHECK(!rdma_set_local_ece(client, offer), "set_local_ece");
  struct rdma_conn_param param = {.responder_resources = 4, .initiator_depth = 4, .retry_count = 7, .rnr_retry_count = 7,
                                  .qp_num = ends[0].qp->qp_num};
  modify(client, ends[0].qp, IBV_QPS_INIT);
  CHECK(!rdma_connect(client, &param), "connect");
  struct rdma_cm_id *server;
  expect(RDMA_CM_EVENT_CONNECT_REQUEST, &server);
  struct ibv_ece asked = remote(server);
  CHECK(asked.vendor_id == (offer ? offer->vendor_id : own.vendor_id), "the request has vendor %#x", asked.vendor_id);
  CHECK(asked.options == (offer ? offer->options : own.options), "the request has options %#x", asked.options);
  if (asked.vendor_id == own.vendor_id) {
    ignored = set(ends[1].qp, asked);
    CHECK(ignored.options == agreed, "the server does %#x", ignored.options);
    struct ibv_ece answer = query(ends[1].qp);
    CHECK(!rdma_set_local_ece(server, &answer), "set_local_ece");
  }
  modify(server, ends[1].qp, IBV_QPS_INIT);
  modify(server, ends[1].qp, IBV_QPS_RTR);
  modify(server, ends[1].qp, IBV_QPS_RTS);
  param.qp_num = ends[1].qp->qp_num;
  CHECK(!rdma_accept(server, &param), "accept");
  CHECK(expect(RDMA_CM_EVENT_CONNECT_RESPONSE, NULL) == client, "of another id");
  struct ibv_ece answered = remote(client);
  CHECK(answered.options == agreed, "the answer has vendor %#x, options %#x", answered.vendor_id, answered.options);
  if (answered.vendor_id == own.vendor_id) set(ends[0].qp, answered);
  modify(client, ends[0].qp, IBV_QPS_RTR);
  modify(client, ends[0].qp, IBV_QPS_RTS);
  CHECK(!rdma_establish(client), "establish");
  CHECK(expect(RDMA_CM_EVENT_ESTABLISHED, NULL) == server, "of another id");
  for (int i = 0; i < 2; i++) CHECK(query(ends[i].qp).options == agreed, "QP %d does %#x", i, query(ends[i].qp).options);
  transfer();
  disconnect(server);
  for (int i = 0; i < 2; i++) CHECK(!ibv_destroy_qp(ends[i].qp), "destroy_qp");
}

/* With QPs of the library's, which does all of it. */
static void internal(void) {
  resolve();
  struct ibv_qp_init_attr init = {.qp_type = IBV_QPT_RC, .cap = {.max_send_wr = 4, .max_recv_wr = 4, .max_send_sge = 1, .max_recv_sge = 1}},
                          other = init;
  CHECK(!rdma_create_qp(client, NULL, &init), "create_qp");
  struct ibv_ece own = query(client->qp), ignored = own;
  CHECK(rdma_set_local_ece(client, &own) == -1 && errno == EINVAL, "set_local_ece of an id with a QP");
  CHECK(rdma_get_remote_ece(client, &ignored) == -1 && errno == EINVAL, "get_remote_ece of an id with a QP");
  struct rdma_conn_param param = {.responder_resources = 4, .initiator_depth = 4, .retry_count = 7, .rnr_retry_count = 7};
  CHECK(!rdma_connect(client, &param), "connect");
  struct rdma_cm_id *server;
  expect(RDMA_CM_EVENT_CONNECT_REQUEST, &server);
  CHECK(remote(server).options == own.options, "the request has options %#x", remote(server).options);
  CHECK(!rdma_create_qp(server, NULL, &other) && !rdma_accept(server, &param), "accept");
  for (int i = 0; i < 2; i++) expect(RDMA_CM_EVENT_ESTABLISHED, NULL);
  CHECK(query(client->qp).options == own.options && query(server->qp).options == own.options, "the QPs did not agree");
  rdma_destroy_qp(client);
  rdma_destroy_qp(server);
  disconnect(server);
}

int main(void) {
  setvbuf(stdout, NULL, _IOLBF, 0);
  int count;
  struct ibv_device **list = ibv_get_device_list(&count);
  CHECK(list && count, "no device");
  open_end(&ends[0], list[0]);
  open_end(&ends[1], list[count - 1]);
  ibv_free_device_list(list);
  by_hand();
  channel = rdma_create_event_channel();
  CHECK(channel, "create_event_channel");
  make_qps();
  struct ibv_ece own = query(ends[0].qp), nothing = {.vendor_id = own.vendor_id}, stranger = {.vendor_id = 0x15b3, .options = 5};
  for (int i = 0; i < 2; i++) CHECK(!ibv_destroy_qp(ends[i].qp), "destroy_qp");
  external(NULL, own.options);
  external(&own, own.options);
  external(&nothing, 0);
  external(&stranger, 0);
  internal();
  rdma_destroy_event_channel(channel);
  for (int i = 0; i < 2; i++) {
    CHECK(!ibv_dereg_mr(ends[i].mr) && !ibv_destroy_cq(ends[i].cq) && !ibv_dealloc_pd(ends[i].pd), "the rest");
    CHECK(!ibv_close_device(ends[i].context), "close_device");
  }
  printf("%d devices agree on %#x\n", count, own.options);
  return 0;
}

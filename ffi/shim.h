/*
 * Out-of-line copies of those DPDK functions that its headers define as `static inline` or as macros,
 * so that a Rust caller can link to them. One call per burst, never one per packet. No logic.
 */
#ifndef FERROCE_SHIM_H
#define FERROCE_SHIM_H

#include <stdint.h>

struct rte_mbuf;
struct rte_mempool;
struct rte_ring;

/* rte_eth_rx_burst */
uint16_t ferroce_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);
/* rte_eth_rx_queue_count: frames that wait, or a negative errno */
int ferroce_rx_queue_count(uint16_t port, uint16_t queue);
/* rte_eth_tx_burst */
uint16_t ferroce_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count);
/* rte_pktmbuf_alloc_bulk: 0, or negative and nothing allocated */
int ferroce_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned int count);
/* rte_pktmbuf_free */
void ferroce_mbuf_free(struct rte_mbuf *mbuf);
/* rte_pktmbuf_linearize: 0, or negative and the mbuf unchanged */
int ferroce_mbuf_linearize(struct rte_mbuf *mbuf);
/* rte_ring_dequeue: 0, or negative when the ring is empty */
int ferroce_ring_dequeue(struct rte_ring *ring, void **object);
/* rte_errno of the calling thread */
int ferroce_errno(void);
/* rte_lcore_id of the calling thread, UINT32_MAX when it has none */
uint32_t ferroce_lcore_id(void);
/* rte_openlog_stream(stderr): the console log of DPDK 22.11 goes to stdout otherwise */
int ferroce_log_to_stderr(void);

#endif

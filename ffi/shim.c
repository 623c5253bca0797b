#include <stdio.h>

#include <rte_errno.h>
#include <rte_ethdev.h>
#include <rte_lcore.h>
#include <rte_log.h>
#include <rte_mbuf.h>
#include <rte_ring.h>

#include "shim.h"

uint16_t ferroce_rx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count)
{
	return rte_eth_rx_burst(port, queue, mbufs, count);
}

int ferroce_rx_queue_count(uint16_t port, uint16_t queue)
{
	return rte_eth_rx_queue_count(port, queue);
}

uint16_t ferroce_tx_burst(uint16_t port, uint16_t queue, struct rte_mbuf **mbufs, uint16_t count)
{
	return rte_eth_tx_burst(port, queue, mbufs, count);
}

int ferroce_mbuf_alloc_bulk(struct rte_mempool *pool, struct rte_mbuf **mbufs, unsigned int count)
{
	return rte_pktmbuf_alloc_bulk(pool, mbufs, count);
}

void ferroce_mbuf_free(struct rte_mbuf *mbuf)
{
	rte_pktmbuf_free(mbuf);
}

int ferroce_mbuf_linearize(struct rte_mbuf *mbuf)
{
	return rte_pktmbuf_linearize(mbuf);
}

int ferroce_ring_dequeue(struct rte_ring *ring, void **object)
{
	return rte_ring_dequeue(ring, object);
}

int ferroce_errno(void)
{
	return rte_errno;
}

uint32_t ferroce_lcore_id(void)
{
	return rte_lcore_id();
}

int ferroce_log_to_stderr(void)
{
	return rte_openlog_stream(stderr);
}

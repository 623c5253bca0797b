//! Counters: plain numbers that only their shard writes; readers get copies. Names are the kernel's (rxe, mlx5) where one
//! exists there.

/// Declares a struct of counters that knows their names and what they count: `docs/counters.md` says the same.
macro_rules! counters {
    ($(#[$doc:meta])* $name:ident { $($(#[doc = $meaning:literal])* $counter:ident,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
        pub struct $name {
            $($(#[doc = $meaning])* pub $counter: u64,)*
        }
        impl $name {
            /// Name and meaning of every counter, in the order of declaration.
            pub const MEANINGS: &[(&str, &str)] = &[$((stringify!($counter), concat!($($meaning),*))),*];
            /// Name and value of every counter, in the order of declaration.
            pub fn entries(&self) -> impl Iterator<Item = (&'static str, u64)> {
                [$((stringify!($counter), self.$counter)),*].into_iter()
            }
            /// Adds another shard's counters.
            pub fn add(&mut self, other: &Self) {
                $(self.$counter += other.$counter;)*
            }
        }
    };
}

counters! {
    /// What one shard saw of a port.
    PortCounters {
        /// RoCE packets received, right or wrong.
        rx_roce_packets,
        /// Bytes of their frames.
        rx_roce_bytes,
        /// RoCE packets built for transmission.
        tx_roce_packets,
        /// Bytes of their frames.
        tx_roce_bytes,
        /// RoCE packets that stayed in this engine: both QPs are its own.
        local_packets,
        /// ARP packets received.
        rx_arp_packets,
        /// ARP packets sent.
        tx_arp_packets,
        /// ARP packets in which another host claims one of our addresses.
        arp_address_conflict,
        /// Neighbour Discovery packets received.
        rx_ndp_packets,
        /// Neighbour Discovery packets sent.
        tx_ndp_packets,
        /// Neighbour Discovery packets in which another host claims one of our addresses, or tries whether it is free.
        ndp_address_conflict,
        /// Frames of a VLAN in which the port has no address.
        rx_unknown_vlan,
        /// PFC frames received, obeyed or not.
        rx_pfc_frames,
        /// PAUSE frames for the whole link received: not obeyed.
        rx_link_pause_frames,
        /// PFC frames sent.
        tx_pfc_frames,
        /// Frames of other protocols: not ours.
        rx_other_packets,
        /// Frames cut short, or whose lengths contradict each other.
        rx_malformed_packets,
        /// IP header checksum or UDP checksum wrong.
        rx_checksum_err,
        /// Opcode that does not exist.
        rx_unknown_opcode,
        /// Transport version other than 0.
        rx_bad_tver,
        /// ICRC wrong: dropped silently.
        rx_icrc_encapsulated,
        /// QPN that does not exist (or belongs to another shard and could not be handed over).
        rx_unknown_qpn,
        /// P_Key that does not match.
        rx_bad_pkey,
        /// Addresses, VLAN or version of RoCE are not those of the QP's path.
        rx_wrong_path,
        /// Q_Key of a UD datagram that does not match.
        rx_bad_qkey,
        /// Opcode of another service than the QP's.
        rx_wrong_service,
        /// The QP's state takes no such packet.
        rx_wrong_state,
        /// RoCE packets received that a switch had marked: congestion experienced.
        np_ecn_marked_roce_packets,
        /// CNPs sent.
        np_cnp_sent,
        /// CNPs received and followed.
        rp_cnp_handled,
        /// CNPs received by QPs whose congestion control takes none.
        rp_cnp_ignored,
        /// Management datagrams received for QP1.
        rx_mad_packets,
        /// Packets for QP1 that are no management datagram: wrong opcode, size, Q_Key or source QP.
        rx_bad_mad_packets,
        /// Management datagrams received and dropped because the control side is behind.
        rx_lost_mad_packets,
        /// Management datagrams sent.
        tx_mad_packets,
        /// Management datagrams not sent: too many at a time, no such path, or the neighbour does not answer.
        tx_lost_mad_packets,
    }
}

counters! {
    /// What one shard saw of a priority of a port. Pauses are counted by the first shard.
    PriorityCounters {
        /// RoCE packets received.
        rx_packets,
        /// Bytes of their frames.
        rx_bytes,
        /// RoCE packets sent out of the port.
        tx_packets,
        /// Bytes of their frames.
        tx_bytes,
        /// PFC frames received that name the priority.
        rx_pause,
        /// Of those, the ones that were not obeyed: the priority has no flow control, or its pauses are ignored after a storm.
        rx_pause_ignored,
        /// Times that the priority was paused while it was not.
        rx_pause_transition,
        /// Nanoseconds for which it was paused, without a pause that is not over yet.
        rx_pause_duration_ns,
        /// PFC frames sent that name the priority.
        tx_pause,
        /// Times that the peer was told to pause it while it was not.
        tx_pause_transition,
        /// Storms: pauses that did not end within `pfc_watchdog_ms`.
        pause_storm,
        /// Suspected deadlocks: paused both ways, and nothing came or went for `pfc_watchdog_ms`.
        pause_deadlock,
    }
}

counters! {
    /// What the transport of one shard did.
    ShardCounters {
        /// Request packets executed.
        rx_requests,
        /// READ and atomic responses taken.
        rx_responses,
        /// Acknowledgements taken.
        rx_acks,
        /// Duplicate requests: acknowledged or answered again, not executed again.
        duplicate_request,
        /// Requests ahead of the expected PSN.
        out_of_seq_request,
        /// Responses or acknowledgements for packets that were never sent.
        ghost_ack,
        /// Responses or acknowledgements that came twice or too late.
        duplicate_ack,
        /// RNR NAKs received.
        rcvd_rnr_err,
        /// RNR NAKs sent.
        send_rnr_err,
        /// Sequence NAKs received.
        rcvd_seq_err,
        /// Sequence NAKs sent.
        out_of_sequence,
        /// A gap in responses: asked again from there.
        implied_nak_seq_err,
        /// Selective acknowledgements received.
        rx_sacks,
        /// Selective acknowledgements sent.
        tx_sacks,
        /// Requests that came early and were kept.
        kept_requests,
        /// READ responses and atomic results that came early and were kept.
        kept_responses,
        /// Packets that came early and were dropped: too far ahead, or no room to keep them.
        kept_no_room,
        /// READ responses that were asked for again and not sent again: too many such requests at a time.
        repeats_dropped,
        /// Packets sent again by themselves, and requests for READ responses that are missing.
        selective_repeats,
        /// Times the last or oldest packet was sent again because nothing came.
        tail_probes,
        /// Times everything from the oldest packet on was sent again.
        rewinds,
        /// Sequence NAKs ignored: what they ask for had been sent again less than a round trip time before.
        stale_naks,
        /// Acknowledgement timeouts.
        local_ack_timeout_err,
        /// Request packets sent again.
        retransmitted_packets,
        /// QPs that used retry_cnt up.
        retry_exceeded_err,
        /// QPs that used rnr_retry up.
        retry_rnr_exceeded_err,
        /// Invalid requests received: NAK 1.
        resp_local_length_error,
        /// Access violations received: NAK 2.
        resp_remote_access_errors,
        /// Failures of our own as responder: NAK 3.
        resp_local_operation_err,
        /// UC packets dropped: the rest of a message with a gap, no receive posted, or a request that can't be executed.
        uc_dropped_packets,
        /// UD datagrams dropped because no receive was posted.
        ud_no_receive,
        /// UD datagrams dropped because their receive was too short or no good.
        ud_dropped_packets,
        /// UD datagrams that were not sent because their neighbour does not answer.
        ud_unreachable,
        /// NAKs received that broke a QP.
        req_remote_errors,
        /// Work requests of clients that were wrong.
        req_local_errors,
        /// Work requests flushed.
        flushed_wqes,
        /// Work requests completed.
        completed_wqes,
        /// Completions lost because a client's CQ was full.
        cq_overrun,
        /// Ring indices that no correct client writes.
        bad_ring_index,
        /// Reads of memory of clients' processes: a system call each.
        process_memory_reads,
        /// Writes of memory of clients' processes, atomics among them.
        process_memory_writes,
        /// Accesses to memory that was not mapped in the client's process any more.
        process_memory_faults,
        /// Reads and writes of memory of clients' processes without a system call: of shared memory, and of memory that has moved.
        process_memory_mapped,
        /// Asynchronous events that did not fit the queue to the control side.
        events_lost,
        /// Post-mortems that newer ones displaced before anybody fetched them.
        post_mortems_lost,
        /// Doorbells served.
        doorbells,
        /// Turns of the loop.
        turns,
        /// Turns that found nothing to do.
        idle_turns,
    }
}

counters! {
    /// What one QP did.
    QpCounters {
        /// Request packets sent, repeats included.
        tx_requests,
        /// PSNs acknowledged: of READs, one for each response.
        acked_packets,
        /// Request packets sent again.
        retransmitted_packets,
        /// Request packets executed.
        rx_requests,
        /// Acknowledgement timeouts.
        timeouts,
        /// Sequence NAKs received.
        sequence_naks,
        /// Selective acknowledgements received.
        sacks,
        /// RNR NAKs received.
        rnr_naks,
        /// Duplicate requests received.
        duplicate_requests,
        /// Requests received ahead of the expected PSN.
        out_of_sequence,
        /// Work requests completed.
        completed_wqes,
        /// Packets received that a switch had marked.
        ecn_marked_packets,
        /// CNPs sent.
        cnps_sent,
        /// CNPs received.
        cnps_received,
    }
}

counters! {
    /// What the connection manager saw; each counts management datagrams, unless it says otherwise.
    CmCounters {
        /// Messages of connection management received.
        rx_cm_messages,
        /// Messages of connection management sent, repeats included.
        tx_cm_messages,
        /// Messages sent again because no answer came in time.
        cm_retries,
        /// Received of another MAD version, or with another method than Send.
        rx_mad_malformed,
        /// Received of another management class than connection management.
        rx_mad_other_class,
        /// Received in another version of connection management: requests are refused.
        rx_cm_other_version,
        /// Received with an attribute that does not exist.
        rx_cm_unknown_attribute,
        /// Messages about a connection that does not exist.
        rx_cm_unknown_connection,
        /// Messages from another address than the connection's peer, or about another QP.
        rx_cm_foreign,
        /// Messages that came late, repeated, or without sense in the state of the connection.
        rx_cm_ignored,
        /// Requests refused without asking an application.
        rx_cm_refused,
        /// Requests of a QP that was connected already.
        rx_cm_stale,
        /// Messages not sent because too many waited.
        tx_cm_lost,
        /// Sentences for the log that were lost because too many waited.
        cm_notices_lost,
    }
}

use proptest::prelude::*;

use super::*;
use crate::segment::SegmentAllocator;

fn block(bytes: u64) -> Block {
    SegmentAllocator::new(64 << 20).allocate(bytes).unwrap().0
}

fn send_pair(wr: u32, sge: u32, inline: u32) -> (SendPoster, SendFetcher, Block) {
    let sq = QueueShape::send(wr, sge, inline);
    let block = block(qp_block_bytes(sq, QueueShape::default()));
    (SendPoster::new(&block, sq, wr).unwrap(), SendFetcher::new(&block, sq).unwrap(), block)
}

#[test]
fn a_send_wqe_crosses_with_its_sges_or_inline_data() {
    let (mut poster, mut fetcher, _) = send_pair(4, 3, 100);
    let sges = [Sge { addr: 0x1000, length: 7, lkey: 9 }, Sge { addr: u64::MAX, length: u32::MAX, lkey: 1 }];
    let wqe =
        SendWqe { wr_id: 1, opcode: 3, flags: 2, imm: 0x0102_0304, remote_addr: 5, rkey: 6, ..SendWqe::default() };
    poster.post(wqe, Body::Sges(&sges)).unwrap();
    poster.post(SendWqe { wr_id: 2, ..wqe }, Body::Inline(&[b"hello ", b"world"])).unwrap();
    assert_eq!(fetcher.available(), Ok(0), "nothing is visible before publish");
    poster.publish();
    assert_eq!(fetcher.available(), Ok(2));
    let (mut got_sges, mut inline) = ([Sge::default(); 6], [0; 128]);
    let got = fetcher.fetch(&mut got_sges, &mut inline).unwrap();
    assert_eq!(got, SendWqe { sge_count: 2, ..wqe });
    assert_eq!(&got_sges[..2], &sges);
    let got = fetcher.fetch(&mut got_sges, &mut inline).unwrap();
    assert_eq!((got.wr_id, got.inline_bytes), (2, 11));
    assert_eq!(&inline[..11], b"hello world");
}

#[test]
fn a_full_queue_refuses_and_takes_again_after_retire() {
    let (mut poster, mut fetcher, _) = send_pair(3, 1, 0);
    for i in 0..3 {
        poster.post(SendWqe { wr_id: i, ..SendWqe::default() }, Body::Sges(&[])).unwrap();
    }
    assert_eq!(poster.post(SendWqe::default(), Body::Sges(&[])), Err(PostError::Full), "3 asked for, 3 granted");
    poster.publish();
    fetcher.fetch(&mut [], &mut []).unwrap();
    fetcher.retire(1);
    assert_eq!(poster.free(), 1);
    assert_eq!(poster.outstanding().map(|(id, ..)| id).collect::<Vec<_>>(), [1, 2]);
}

#[test]
fn the_latest_receives_are_found_taken_or_not() {
    let rq = QueueShape::recv(4, 1);
    let block = block(qp_block_bytes(QueueShape::default(), rq));
    let mut poster = RecvPoster::new(&block, QueueShape::default(), rq, 4).unwrap();
    let mut fetcher = RecvFetcher::new(&block, QueueShape::default(), rq).unwrap();
    for wr_id in 0..7 {
        poster.post(wr_id, &[]).unwrap();
        poster.publish();
        assert_eq!(fetcher.fetch(&mut []), Ok((wr_id, 0)));
    }
    poster.post(7, &[]).unwrap();
    assert_eq!(poster.latest(3).collect::<Vec<_>>(), [5, 6, 7]);
    assert_eq!(poster.latest(100).collect::<Vec<_>>(), [4, 5, 6, 7], "no more than there are slots");
    assert_eq!(poster.outstanding().collect::<Vec<_>>(), [7]);
}

#[test]
fn too_many_sges_or_inline_bytes_are_refused_on_both_sides() {
    let (mut poster, mut fetcher, block) = send_pair(4, 1, 16);
    let sges = [Sge::default(); 2];
    assert_eq!(poster.post(SendWqe::default(), Body::Sges(&sges)), Err(PostError::TooManySges { count: 2, max: 1 }));
    let long = [0; 17];
    let too_long = Err(PostError::InlineTooLong { bytes: 17, max: 16 });
    assert_eq!(poster.post(SendWqe::default(), Body::Inline(&[&long])), too_long);
    let evil = SendWqe { sge_count: u16::MAX, wr_id: 77, ..SendWqe::default() };
    block.mapping.store_words(block.offset + layout::SLOTS, evil.to_words()).unwrap();
    block.mapping.atomic_u32(block.offset + layout::PRODUCER).unwrap().store(1, Release);
    let fault = fetcher.fetch(&mut [Sge::default(); 64], &mut [0; 64]).unwrap_err();
    assert_eq!((fault.0.wr_id, fault.1), (77, WqeFault::SgeCount(u16::MAX)));
}

#[test]
fn completions_cross_in_order_and_an_overrun_is_seen() {
    let block = block(cq_block_bytes(4));
    let (mut writer, mut poller) = (CqWriter::new(&block, 4).unwrap(), CqPoller::new(&block, 4).unwrap());
    assert_eq!(poller.next(), None);
    for i in 0..4 {
        writer.push(&Cqe { wr_id: i, vendor_err: 9, ..Cqe::default() }).unwrap();
    }
    assert_eq!(writer.push(&Cqe::default()), Err(CqOverrun));
    assert!(poller.overrun());
    for i in 0..4 {
        assert_eq!(poller.next().unwrap(), Cqe { wr_id: i, vendor_err: 9, ..Cqe::default() });
    }
    assert_eq!(poller.next(), None);
    poller.publish();
    writer.push(&Cqe { wr_id: 4, ..Cqe::default() }).unwrap();
    assert_eq!(poller.next().unwrap().wr_id, 4);
}

#[test]
fn notifications_come_once_per_request() {
    let block = block(cq_block_bytes(4));
    let (writer, mut poller) = (CqWriter::new(&block, 4).unwrap(), CqPoller::new(&block, 4).unwrap());
    assert!(!writer.take_notification(true), "not armed");
    poller.arm(Arm::Solicited);
    assert!(!writer.take_notification(false));
    assert!(writer.take_notification(true));
    assert!(!writer.take_notification(true));
    poller.arm(Arm::Any);
    poller.arm(Arm::Solicited);
    assert!(writer.take_notification(false), "any outranks solicited");
    assert_eq!(poller.take_notified(), 2);
    assert_eq!(poller.take_notified(), 0);
}

#[test]
fn a_ring_s_successor_is_empty_and_goes_on_with_its_notifications() {
    let (small, large) = (block(cq_block_bytes(2)), block(cq_block_bytes(8)));
    let (mut writer, mut poller) = (CqWriter::new(&small, 2).unwrap(), CqPoller::new(&small, 2).unwrap());
    poller.arm(Arm::Any);
    assert!(writer.take_notification(false));
    poller.arm(Arm::Solicited);
    writer.push(&Cqe { wr_id: 1, ..Cqe::default() }).unwrap();
    let mut next = CqWriter::new(&large, 8).unwrap();
    next.succeed(&writer);
    let mut after = poller.successor(&large, 8).unwrap();
    assert_eq!((poller.next().unwrap().wr_id, after.next()), (1, None));
    for wr_id in 2..10 {
        next.push(&Cqe { wr_id, ..Cqe::default() }).unwrap();
    }
    assert!(!next.take_notification(false) && next.take_notification(true), "still armed for solicited ones");
    assert_eq!(after.take_notified(), 2);
    assert_eq!(
        std::iter::from_fn(|| after.next()).map(|cqe| cqe.wr_id).collect::<Vec<_>>(),
        (2..10).collect::<Vec<_>>()
    );
}

#[test]
fn a_block_that_is_too_small_is_refused() {
    let block = block(64);
    let sq = QueueShape::send(1 << 20, 16, 0);
    assert!(SendFetcher::new(&block, sq).is_err());
    assert!(CqWriter::new(&block, 1 << 24).is_err());
    assert!(CqWriter::new(&block, 3).is_err(), "not a power of two");
}

#[derive(Clone, Debug)]
enum Op {
    Post,
    Publish,
    Fetch,
    Retire,
}

fn ops() -> impl Strategy<Value = Vec<Op>> {
    let op = prop_oneof![3 => Just(Op::Post), 1 => Just(Op::Publish), 3 => Just(Op::Fetch), 2 => Just(Op::Retire)];
    proptest::collection::vec(op, 0..400)
}

proptest! {
    /// Any sequence of operations behaves like a FIFO with three indices.
    #[test]
    fn a_send_queue_is_a_fifo(ops in ops(), wr in 1u32..9) {
        let (mut poster, mut fetcher, _) = send_pair(wr, 1, 0);
        let (mut posted, mut published, mut fetched, mut retired) = (0u64, 0u64, 0u64, 0u64);
        for op in ops {
            match op {
                Op::Post => {
                    let done = poster.post(SendWqe { wr_id: posted, ..SendWqe::default() }, Body::Sges(&[]));
                    prop_assert_eq!(done.is_ok(), posted - retired < u64::from(wr));
                    posted += u64::from(done.is_ok());
                }
                Op::Publish => { poster.publish(); published = posted; }
                Op::Fetch => {
                    prop_assert_eq!(u64::from(fetcher.available().unwrap()), published - fetched);
                    if published > fetched {
                        prop_assert_eq!(fetcher.fetch(&mut [], &mut []).unwrap().wr_id, fetched);
                        fetched += 1;
                    }
                }
                Op::Retire => if fetched > retired { fetcher.retire(1); retired += 1; },
            }
        }
    }

    /// Whatever a client writes into its block, the engine's side neither panics nor reads past the queue.
    #[test]
    fn an_evil_client_costs_only_its_queue(garbage in proptest::collection::vec(any::<u8>(), 1024), index: u32) {
        let (_, mut fetcher, block) = send_pair(4, 2, 32);
        let bytes = garbage.len().min(usize::try_from(layout::SLOTS + 4 * 128).unwrap());
        block.mapping.write(block.offset, &garbage[..bytes]).unwrap();
        block.mapping.atomic_u32(block.offset + layout::PRODUCER).unwrap().store(index, Relaxed);
        match fetcher.available() {
            Err(bad) => prop_assert_eq!(bad.index, index),
            Ok(count) => {
                prop_assert!(count <= 4);
                for _ in 0..count {
                    let _ = fetcher.fetch(&mut [Sge::default(); 2], &mut [0; 32]);
                }
            }
        }
        let mut writer = CqWriter::new(&block, 2).unwrap();
        for _ in 0..8 {
            let _ = writer.push(&Cqe::default());
        }
    }
}

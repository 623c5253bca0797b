//! The checkers find what they are for: a checker that can't fail shows nothing.

use ferroce::{WcOpcode, WcStatus, WorkCompletion};

use super::connection::PostedSend;
use super::*;
use crate::host::HostSettings;
use crate::random::{StreamOf, stream};

/// A conversation with nothing to do, and one SEND and one WRITE of side 0 made out to be on their way.
fn conversation() -> Conversation {
    let host = |number: u8| {
        Host::new(u16::from(number), HostSettings::default(), 1_500, stream(1, StreamOf::Host(number))).unwrap()
    };
    let settings = ConversationSettings::new([Vec::new(), Vec::new()]);
    let hosts = [host(0), host(1)];
    let stream = stream(1, StreamOf::Conversation(0));
    let mut made = Conversation::new(settings, hosts.each_ref(), 0, 1_000, stream).unwrap();
    for (wr_id, opcode) in [(7, WcOpcode::Send), (8, WcOpcode::RdmaWrite)] {
        made.connections[0].ends[0].outstanding.push_back(PostedSend {
            wr_id,
            opcode,
            is_signaled: true,
            byte_len: 0,
            landing: connection::Landing::None,
            sink: 0..0,
            reads: 0..0,
            must_fail: false,
        });
    }
    made
}

/// What becomes of a completion for side 0.
fn complete(conversation: &mut Conversation, wr_id: u64, opcode: WcOpcode, status: WcStatus) -> Checked {
    let qpn = conversation.connections[0].ends[0].qp.as_ref().unwrap().qpn();
    let wc = WorkCompletion { wr_id, opcode, status, qpn, ..WorkCompletion::default() };
    conversation.complete(0, &wc, Time::ZERO)
}

#[test]
fn completions_in_order_are_accepted_and_a_second_one_is_not() {
    let mut conversation = conversation();
    complete(&mut conversation, 7, WcOpcode::Send, WcStatus::Success).unwrap();
    complete(&mut conversation, 8, WcOpcode::RdmaWrite, WcStatus::Success).unwrap();
    let what = complete(&mut conversation, 8, WcOpcode::RdmaWrite, WcStatus::Success).unwrap_err();
    assert!(what.contains("not outstanding"), "{what}");
}

#[test]
fn skipped_completion_is_found() {
    let what = complete(&mut conversation(), 8, WcOpcode::RdmaWrite, WcStatus::Success).unwrap_err();
    assert!(what.contains("0x8 completed, 0x7 before it did not"), "{what}");
}

#[test]
fn completion_of_another_operation_is_found() {
    let what = complete(&mut conversation(), 7, WcOpcode::FetchAdd, WcStatus::Success).unwrap_err();
    assert!(what.contains("SEND completed as FETCH_ADD"), "{what}");
}

#[test]
fn failure_needs_an_explanation() {
    for status in [WcStatus::RetryExcErr, WcStatus::WrFlushErr, WcStatus::RemAccessErr, WcStatus::RnrRetryExcErr] {
        let what = complete(&mut conversation(), 7, WcOpcode::Send, status).unwrap_err();
        assert!(what.contains("nothing explains it"), "{what}");
    }
    let mut conversation = conversation();
    conversation.set_may_break(true);
    complete(&mut conversation, 7, WcOpcode::Send, WcStatus::RetryExcErr).unwrap();
    // After it only a flush is right.
    let what = complete(&mut conversation, 8, WcOpcode::RdmaWrite, WcStatus::RetryExcErr).unwrap_err();
    assert!(what.contains("after the first failure"), "{what}");
}

#[test]
fn receive_that_was_not_posted_is_found() {
    let what = complete(&mut conversation(), 3, WcOpcode::Recv, WcStatus::Success).unwrap_err();
    assert!(what.contains("receive 0x3 completed out of order"), "{what}");
}

#[test]
fn every_byte_outside_the_model_is_found() {
    let mut conversation = conversation();
    conversation.check_at_rest().unwrap();
    let (lane, all) = (conversation.connections[0].ends[1].lane.range.clone(), conversation.clients[1].memory.all());
    // The guard zones' and the region's first and last bytes.
    for at in [0, lane.start - 1, lane.start, lane.end - 1, lane.end, all.end - 1] {
        let undo = conversation.clients[1].memory.damage(at);
        let what = conversation.check_at_rest().unwrap_err();
        assert!(what.contains(&format!("side 1: 1 bytes at offset {at:#x}")), "{what}");
        undo(&conversation.clients[1].memory);
        conversation.check_at_rest().unwrap();
    }
}

#[test]
fn additions_that_lost_one_another_are_found() {
    let mut conversation = conversation();
    let start = conversation.counter_starts[1];
    let words = |additions: &[(u64, u64)]| additions.to_vec();
    // Both saw the same value: one addition was lost.
    conversation.additions[1] = words(&[(start, 5), (start, 7)]);
    let what = conversation.check_at_rest().unwrap_err();
    assert!(what.contains("2 additions to the shared word were not atomic"), "{what}");
    // None happened at all, but one was said to have.
    conversation.additions[1] = words(&[(start, 5)]);
    assert!(conversation.check_at_rest().is_err());
    conversation.additions[1].clear();
    conversation.check_at_rest().unwrap();
}

#[test]
fn memory_that_changes_after_it_was_taken_back_is_found() {
    let mut conversation = conversation();
    let range = conversation.connections[0].ends[0].lane.range.clone();
    let before =
        conversation.clients[0].memory.real(&[memory::Piece { at: range.start, length: range.len() }]).unwrap();
    conversation.frozen = Some((0, range.clone(), before));
    let _undo = conversation.clients[0].memory.damage(range.start + 9);
    let what = conversation.check_frozen().unwrap_err();
    assert!(what.contains("byte 9 of"), "{what}");
}

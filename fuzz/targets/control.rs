//! Any bytes on the control socket: decoded or refused, never a panic; and the session still answers afterwards.
//!
//! Input: repeated { length, message }.
#![no_main]

#[path = "../../engine/tests/support/mod.rs"]
mod support;

use libfuzzer_sys::fuzz_target;
use shm::control::{Reply, Request, decode, encode};
use support::{Client, Host, HostOptions};

fuzz_target!(|input: &[u8]| {
    let mut host = Host::new(HostOptions::new(1));
    let client = Client::new(&mut host, 4096);
    let mut rest = input;
    while let Some((&length, tail)) = rest.split_first() {
        let (message, next) = tail.split_at(usize::from(length).min(tail.len()));
        rest = next;
        let Ok(request) = decode::<Request>(message) else { continue };
        // Sizes are bounded by the limits; a fuzzer that asks for the largest of everything only runs out of time.
        if matches!(&request, Request::CreateCq { cqe: 4097.., .. }) {
            continue;
        }
        let (reply, _) = host.request(client.session, request, vec![]);
        assert!(encode(&reply).is_ok());
        host.turn(host.shards.now);
    }
    assert!(matches!(host.request(client.session, Request::QueryDevice, vec![]).0, Reply::Device(_)));
});

//! The three ways to run a test: against daemons, both engines in this process, one engine in each of two processes.

use std::net::{IpAddr, TcpListener, TcpStream};
use std::thread;

use daemon::embedded::{ThreadedNode, engine_config, polled_pair, start_dpdk, threaded_pair};
use daemon::{Device, IdlePolicy, LcoreSetup, PortSetup};
use ferroce::Context;
use pmd::Vdev;

use crate::args::RunArgs;
use crate::error::{PerfError, Result, io_error};
use crate::floor::{self, FloorRings, FramePlan};
use crate::idle::{IdleSides, compare};
use crate::link::{Link, Proposal};
use crate::machine::{Machine, memory_bytes};
use crate::pair::Engine;
use crate::params::{Metric, Params, Stop, Test};
use crate::remote::{self, SharedDevice};
use crate::report::{IdleQps, Printer, Report, Rounds, Settings};
use crate::side::Role;
use crate::single_thread;

/// Addresses of the two processes on a device of their own.
const SERVER_ADDRESS: IpAddr = daemon::embedded::PAIR_ADDRESSES[0];
const CLIENT_ADDRESS: IpAddr = daemon::embedded::PAIR_ADDRESSES[1];
/// Room for an engine's loop, an application and a peer on each core; with fewer cores engines sleep when idle.
const CORES_TO_SPIN: usize = 4;

/// Runs a test the way that the options say.
///
/// # Errors
/// Whatever goes wrong, as a sentence.
pub(crate) fn run(test: Test, args: &RunArgs) -> Result<()> {
    let runs = args.runs(test)?;
    match (&args.vdev, args.engine.embedded, args.single_thread) {
        (Some(vdev), _, _) => over_device(test, args, runs, &vdev.parse()?),
        (None, true, true) => on_one_thread(args, &runs),
        (None, true, false) => on_threads(args, runs),
        (None, false, _) => against_daemons(test, args, runs),
    }
}

fn report(args: &RunArgs, mode: &'static str, params: &Params, rounds: &Rounds, machine: &Machine) -> Report {
    let settings = Settings {
        mode,
        vdev: args.vdev.clone(),
        mtu_bytes: rounds.mtu_bytes,
        rounds: rounds.rounds.len(),
        params: params.clone(),
    };
    Report::new(rounds, settings, machine.clone())
}

/// Whether the floor means something for a test: not for one message at a time.
const fn has_floor(args: &RunArgs, test: Test) -> bool {
    !args.no_floor && matches!(test.metric, Metric::Bandwidth)
}

/// Runs every size and prints the results. `measure` does all rounds of one.
fn print_all(
    args: &RunArgs,
    mode: &'static str,
    runs: &[Params],
    two_cores: bool,
    mut measure: impl FnMut(&Params) -> Result<(Rounds, Option<IdleQps>)>,
) -> Result<()> {
    let machine = Machine::new(two_cores)?;
    let Some(first) = runs.first() else { return Ok(()) };
    let mut printer = Printer::new(args.json, first.test.metric);
    let mut last = None;
    for params in runs {
        let (rounds, idle_qps) = measure(params)?;
        let report = Report { idle_qps, ..report(args, mode, params, &rounds, &machine) };
        printer.add(&report);
        last = Some(report);
    }
    last.iter().for_each(|report| printer.finish(report));
    Ok(())
}

fn on_one_thread(args: &RunArgs, runs: &[Params]) -> Result<()> {
    if let Some(&core) = args.cores.first() {
        pmd::pin_current_thread(core)?;
    }
    let [server_node, client_node] = polled_pair(&engine_config("ferroce0"))?;
    let server = Context::from_endpoint(server_node.connect()?)?;
    let client = Context::from_endpoint(client_node.connect()?)?;
    let mut rings = FloorRings::new(start_dpdk()?)?;
    let mut measure_rounds = |params: &Params| -> Result<Rounds> {
        let mut rounds = Rounds::default();
        let mut floor = |rounds: &mut Rounds| -> Result<()> {
            if has_floor(args, params.test) {
                let plan = FramePlan::new(params, rounds.mtu_bytes);
                rounds.floors_per_s.push(rings.one_thread(&plan, floor::DURATION)?);
            }
            Ok(())
        };
        // The first round is short: it warms up, and tells the MTU that the floor needs.
        rounds.mtu_bytes = warm_up(&client, &server, params, args)?;
        floor(&mut rounds)?;
        for _ in 0..args.rounds() {
            let (round, mtu_bytes) = single_thread::run(&client, &server, params, args.gid_index)?;
            rounds.add(round, mtu_bytes);
            floor(&mut rounds)?;
        }
        Ok(rounds)
    };
    print_all(args, "single_thread", runs, false, |params| {
        let rounds = measure_rounds(params)?;
        if args.qps_idle == 0 {
            return Ok((rounds, None));
        }
        let before = memory_bytes();
        let idle = IdleSides::between(&server, &client, args.qps_idle, args.gid_index)?;
        let with_idle = measure_rounds(params)?;
        let idle_qps = compare(&rounds, &with_idle, &idle, before);
        Ok((with_idle, Some(idle_qps)))
    })
}

/// A short round that does not count.
fn warm_up(client: &Context, server: &Context, params: &Params, args: &RunArgs) -> Result<u32> {
    const MESSAGES: u64 = 100;
    let stop = Stop::Iterations(MESSAGES.min(params.iterations()));
    let params = Params { stop, ..params.clone() };
    single_thread::run(client, server, &params, args.gid_index).map(|(_, mtu_bytes)| mtu_bytes)
}

fn on_threads(args: &RunArgs, runs: Vec<Params>) -> Result<()> {
    let cores = pmd::available_cores()?;
    let idle = if cores.len() >= CORES_TO_SPIN { IdlePolicy::Spin } else { IdlePolicy::Adaptive };
    let setup = |place: usize| LcoreSetup { cores: vec![args.cores.get(place).copied()], idle };
    let nodes = threaded_pair(&engine_config("ferroce0"), [&setup(0), &setup(1)])?;
    let contexts = [connect(&nodes[0])?, connect(&nodes[1])?];
    let mut rings = FloorRings::new(start_dpdk()?)?;
    let [server_link, client_link] = loopback()?;
    let gid_index = args.gid_index;
    let [server, client] = &contexts;
    let proposal = proposal(args, runs, false);
    thread::scope(|scope| {
        let test = proposal.runs[0].test;
        let serving = scope.spawn(move || {
            let engine = Engine { context: server, polled: false, gid_index };
            let proposal = server_link.accept_proposal(test, false)?;
            remote::serve(&server_link, engine, &proposal)
        });
        // Moved in, so that a failure here ends the link, and with it the other side.
        let done = (|link: Link| {
            link.propose(&proposal)?;
            let engine = Engine { context: client, polled: false, gid_index };
            print_all(args, "embedded", &proposal.runs, true, |params| {
                remote::measure(&link, engine, &proposal, params, Role::Client, |rounds| {
                    if has_floor(args, params.test) {
                        let plan = FramePlan::new(params, rounds.mtu_bytes);
                        rounds.floors_per_s.push(rings.two_threads(&plan, floor::DURATION)?);
                    }
                    Ok(())
                })
            })
        })(client_link);
        let served = serving.join().map_err(|_| PerfError::Thread("server"))?;
        done.and(served)
    })
}

fn connect(node: &ThreadedNode) -> Result<Context> {
    Ok(Context::from_fd(node.connect().map_err(io_error("connecting to the engine"))?)?)
}

/// Both ends of a TCP connection to ourselves.
fn loopback() -> Result<[Link; 2]> {
    let what = || io_error("a TCP connection to ourselves");
    let listener = TcpListener::bind("127.0.0.1:0").map_err(what())?;
    let client = TcpStream::connect(listener.local_addr().map_err(what())?).map_err(what())?;
    let (server, _) = listener.accept().map_err(what())?;
    Ok([Link::new(server)?, Link::new(client)?])
}

fn against_daemons(test: Test, args: &RunArgs, runs: Vec<Params>) -> Result<()> {
    let context = Context::connect(&args.engine.socket)?;
    let engine = Engine { context: &context, polled: false, gid_index: args.gid_index };
    let Some(host) = &args.server else {
        let link = Link::listen(args.port)?;
        return remote::serve(&link, engine, &link.accept_proposal(test, false)?);
    };
    let link = Link::connect(host, args.port)?;
    let proposal = proposal(args, runs, false);
    link.propose(&proposal)?;
    print_all(args, "daemon", &proposal.runs, false, |params| {
        remote::measure(&link, engine, &proposal, params, Role::Client, |_| Ok(()))
    })
}

/// Two processes, each with its engine and its application on one thread.
fn over_device(test: Test, args: &RunArgs, runs: Vec<Params>, vdev: &Vdev) -> Result<()> {
    if let Some(&core) = args.cores.first() {
        pmd::pin_current_thread(core)?;
    }
    let default = if args.server.is_none() { SERVER_ADDRESS } else { CLIENT_ADDRESS };
    let addresses = match (args.address, vdev.kernel_interface()) {
        (Some(address), _) => vec![address],
        (None, Some(_)) => Vec::new(),
        (None, None) => vec![default],
    };
    let setup = PortSetup::new(Device::Vdev(vdev.clone()), addresses);
    let device = SharedDevice { eal: start_dpdk()?, setup, gid_index: args.gid_index };
    let Some(host) = &args.server else {
        let link = Link::listen(args.port)?;
        let proposal = link.accept_proposal(test, true)?;
        return proposal
            .runs
            .iter()
            .try_for_each(|params| device.measure(&link, &proposal, params, Role::Server).map(drop));
    };
    let link = Link::connect(host, args.port)?;
    let proposal = proposal(args, runs, has_floor(args, test));
    link.propose(&proposal)?;
    print_all(args, "vdev", &proposal.runs, true, |params| {
        Ok((device.measure(&link, &proposal, params, Role::Client)?, None))
    })
}

fn proposal(args: &RunArgs, runs: Vec<Params>, floor: bool) -> Proposal {
    let version = env!("CARGO_PKG_VERSION").to_owned();
    Proposal { version, runs, rounds: args.rounds(), floor, idle_qps: args.qps_idle }
}

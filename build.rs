//! The build script of `ffi` (`dpdk-sys`): finds libdpdk, compiles the shim, generates the bindings.
//!
//! Everything that DPDK needs is behind this one script: the crates that do not depend on `ffi` build without it.

use std::env;
use std::fmt::Display;
use std::panic;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Oldest release whose structure layouts and functions the bindings were tested with.
const OLDEST_DPDK: &str = "22.11";

/// Shared libraries linked. The list pkg-config gives would link every driver; EAL loads drivers itself, at run time.
/// `rte_net_ring` is a driver too, but has functions of its own (`rte_eth_from_rings`).
const LIBRARIES: [&str; 7] =
    ["rte_eal", "rte_ethdev", "rte_mbuf", "rte_mempool", "rte_ring", "rte_bus_vdev", "rte_net_ring"];

/// Functions exported by libdpdk that `pmd` calls.
const FUNCTIONS: &str = "rte_(eal_(init|get_runtime_dir)|thread_(un)?register|vdev_(un)?init|version\
    |eth_dev_(info_get|get_port_by_name|get_name_by_port|configure|start|stop|close|socket_id\
    |default_mac_addr_set|adjust_nb_rx_tx_desc|flow_ctrl_get|priority_flow_ctrl_set)\
    |eth_(find_next|macaddr_get|(promiscuous|allmulticast)_enable|link_get_nowait|stats_(get|reset)|[rt]x_queue_setup|from_rings)\
    |get_tsc_hz|pktmbuf_(pool_create|free_bulk)|mempool_avail_count|ring_(create|free))";

/// Types that Rust cannot express (packed with an aligned member): kept as blobs of the right size.
const OPAQUE_TYPES: &str = "rte_arp_ipv4|rte_arp_hdr|rte_l2tpv2_.*|rte_gtp_psc_generic_hdr|__tile.*";

fn main() -> ExitCode {
    match build() {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            println!(
                "cargo::error={reason}; install what is missing (Debian 12: `apt install libdpdk-dev libclang-dev clang \
                 pkg-config`), or build only wire, shm, engine, sim, verbs and cli, which need none of it"
            );
            ExitCode::FAILURE
        }
    }
}

fn build() -> Result<(), String> {
    let root = PathBuf::from(env::var_os("CARGO_MANIFEST_DIR").ok_or("CARGO_MANIFEST_DIR is not set")?);
    let out = PathBuf::from(env::var_os("OUT_DIR").ok_or("OUT_DIR is not set")?);
    for source in ["shim.c", "shim.h", "wrapper.h", "../build.rs"] {
        println!("cargo::rerun-if-changed={}", root.join(source).display());
    }

    // No metadata: it would link every library and driver, and it drops the flags that are neither -I nor -l.
    let dpdk = pkg_config::Config::new()
        .atleast_version(OLDEST_DPDK)
        .cargo_metadata(false)
        .env_metadata(true)
        .probe("libdpdk")
        .map_err(|e| format!("libdpdk {OLDEST_DPDK} or later was not found by pkg-config ({})", first_line(&e)))?;
    println!("cargo::metadata=version={}", dpdk.version);

    compile_shim(&root, &dpdk.include_paths)?;
    generate_bindings(&root, &dpdk.include_paths, &out)?;

    // After the shim: a static archive's undefined symbols are looked for in what follows it on the command line.
    for path in &dpdk.link_paths {
        println!("cargo::rustc-link-search=native={}", path.display());
    }
    for library in LIBRARIES {
        println!("cargo::rustc-link-lib=dylib={library}");
    }
    Ok(())
}

/// Flags without which DPDK's headers do not compile: its configuration, and the instruction set it was built for.
fn dpdk_flags() -> Vec<&'static str> {
    let mut flags = vec!["-include", "rte_config.h"];
    if env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|arch| arch == "x86_64") {
        flags.push("-march=x86-64-v2");
    }
    flags
}

fn compile_shim(root: &Path, include_paths: &[PathBuf]) -> Result<(), String> {
    let mut compiler = cc::Build::new();
    compiler.file(root.join("shim.c")).includes(include_paths).warnings(true).extra_warnings(true).opt_level(3);
    // DPDK's own headers warn under -Wextra with some compilers; only ours are to be clean.
    compiler.flag_if_supported("-Wno-unused-parameter").flag_if_supported("-Wno-deprecated-declarations");
    for flag in dpdk_flags() {
        compiler.flag(flag);
    }
    compiler.try_compile("ferroce_dpdk_shim").map_err(|e| format!("the C shim did not compile ({})", first_line(&e)))
}

fn generate_bindings(root: &Path, include_paths: &[PathBuf], out: &Path) -> Result<(), String> {
    require_libclang()?;
    let bindings = bindgen::Builder::default()
        .header(root.join("wrapper.h").to_string_lossy())
        .clang_args(include_paths.iter().map(|path| format!("-I{}", path.display())))
        .clang_args(dpdk_flags())
        .use_core()
        .layout_tests(true)
        .generate_comments(false)
        .prepend_enum_name(false)
        .default_enum_style(bindgen::EnumVariation::Consts)
        .allowlist_function(FUNCTIONS)
        .allowlist_function("ferroce_.*")
        .allowlist_var(
            "RTE_(PKTMBUF_HEADROOM|MAX_ETHPORTS|ETHER_(MTU|HDR_LEN)|ETH_(LINK_UP|NAME_MAX_LEN))|SOCKET_ID_ANY",
        )
        .allowlist_var("RING_F_S[PC]_(ENQ|DEQ)|RTE_ETH_FLOW_NONFRAG_IPV[46]_UDP|RTE_ETH_FC_(NONE|FULL)")
        .opaque_type(OPAQUE_TYPES)
        .generate()
        .map_err(|e| format!("bindgen could not read DPDK's headers ({})", first_line(&e)))?;
    bindings.write_to_file(out.join("bindings.rs")).map_err(|e| format!("could not write bindings.rs ({e})"))
}

/// bindgen loads libclang when first used and panics when there is none: ask early, and turn that into a sentence.
fn require_libclang() -> Result<(), String> {
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let found = panic::catch_unwind(bindgen::clang_version);
    panic::set_hook(hook);
    found.map(drop).map_err(|_| "libclang was not found, which bindgen needs".to_owned())
}

fn first_line(error: &dyn Display) -> String {
    error.to_string().lines().find(|line| !line.trim().is_empty()).unwrap_or("no reason given").trim().to_owned()
}

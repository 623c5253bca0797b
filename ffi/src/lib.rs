//! Raw bindings to libdpdk, made by bindgen from `wrapper.h`, and to `shim.c`, which lends a symbol to DPDK's
//! `static inline` functions. No logic and no safety here: `pmd` is the only crate that may use it.
//!
//! Functions and types keep their C names and DPDK's contracts (the DPDK API reference, release 22.11 or later).
//! The shim's functions start with `ferroce_`; `shim.h` names the DPDK function behind each.

mod bindings {
    #![allow(
        non_camel_case_types,
        non_snake_case,
        non_upper_case_globals,
        dead_code,
        reason = "generated code keeps C's names, and types that the allowed functions only mention"
    )]
    #![allow(
        missing_docs,
        unsafe_op_in_unsafe_fn,
        unused_qualifications,
        clippy::all,
        clippy::pedantic,
        clippy::multiple_unsafe_ops_per_block,
        clippy::ptr_as_ptr,
        clippy::undocumented_unsafe_blocks,
        reason = "generated code: the DPDK headers are its documentation"
    )]
    include!(concat!(env!("OUT_DIR"), "/bindings.rs"));
}

pub use bindings::*;

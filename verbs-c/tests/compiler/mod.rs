//! C programs that are made and run by tests.

#![allow(dead_code, reason = "each test binary uses its part")]

use std::fs;
use std::process::Command;

/// What a program prints. `None`, with a word on standard error, where there is no C compiler or no rdma-core header.
pub(crate) fn run(source: &str) -> Option<String> {
    run_with(source, &[])
}

/// As [`run`], with variables of the environment.
pub(crate) fn run_with(source: &str, variables: &[(&str, &str)]) -> Option<String> {
    let folder = tempfile::tempdir().expect("a folder for the program");
    let (file, program) = (folder.path().join("program.c"), folder.path().join("program"));
    let has_header = |path: &str| fs::exists(path).unwrap_or(false);
    if !has_header("/usr/include/infiniband/verbs.h") {
        eprintln!("skipped: infiniband/verbs.h is not installed (apt-get install libibverbs-dev)");
        return None;
    }
    fs::write(&file, source).expect("the program is written");
    let Ok(compiled) = Command::new("cc").arg("-o").arg(&program).arg(&file).output() else {
        eprintln!("skipped: there is no C compiler `cc`");
        return None;
    };
    assert!(compiled.status.success(), "{}", String::from_utf8_lossy(&compiled.stderr));
    let output = Command::new(&program).envs(variables.iter().copied()).output().expect("it runs");
    assert!(output.status.success(), "{output:?}");
    Some(String::from_utf8(output.stdout).expect("text"))
}

//! `ferroce run`: what it sets, and that it becomes the program.

use std::fs;

use crate::ferroce;

/// A folder with a file that has the library's name.
fn folder() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("libibverbs.so.1"), "").expect("a file");
    folder
}

#[test]
fn print_env_shows_what_a_program_would_get() {
    let folder = folder();
    let path = folder.path().to_str().expect("text");
    let run = ferroce(["run", "--libraries", path, "--sockets", "/run/a.sock:/run/b", "--print-env"]);
    let (first, second) = run.stdout.split_once('\n').expect("two lines");
    assert_eq!(run.status, 0, "{}", run.stderr);
    let real = folder.path().canonicalize().expect("a path");
    assert!(first.starts_with(&format!("LD_LIBRARY_PATH={}", real.display())), "{first}");
    assert_eq!(second, "FERROCE_SOCKETS=/run/a.sock:/run/b\n");
}

#[test]
fn the_program_s_status_is_the_tool_s() {
    let folder = folder();
    let path = folder.path().to_str().expect("text");
    let run = ferroce(["run", "--libraries", path, "--", "sh", "-c", "echo $FERROCE_SOCKETS; exit 7"]);
    assert_eq!((run.status, run.stdout.as_str()), (7, "/run/ferroce\n"));
    let missing = ferroce(["run", "--libraries", path, "--", "no-such-program"]);
    assert_eq!(missing.status, 2);
    assert!(missing.stderr.contains("ferroce: no-such-program can't be started: "), "{}", missing.stderr);
}

#[test]
fn one_daemon_is_named_as_for_all_commands_and_no_daemon_is_told() {
    let folder = folder();
    let path = folder.path().to_str().expect("text");
    let run =
        ferroce(["--socket", "/run/one.sock", "run", "--libraries", path, "--", "sh", "-c", "echo $FERROCE_SOCKETS"]);
    assert_eq!((run.status, run.stdout.as_str()), (0, "/run/one.sock\n"));
    let told = "ferroce: no daemon has a socket at /run/one.sock: the program finds no device\n";
    assert_eq!(run.stderr, told);
    // Several are named in another way, which counts.
    let both = ["--socket", "/run/one.sock", "run", "--libraries", path, "--sockets", path, "--print-env"];
    let run = ferroce(both);
    assert!(run.stdout.ends_with(&format!("FERROCE_SOCKETS={path}\n")), "{}", run.stdout);
    let socket = folder.path().join("d.sock");
    let _daemon = std::os::unix::net::UnixListener::bind(socket).expect("a socket");
    let run = ferroce(["run", "--libraries", path, "--sockets", path, "--", "true"]);
    assert_eq!((run.status, run.stderr.as_str()), (0, ""));
}

#[test]
fn a_folder_without_the_library_is_refused() {
    let run = ferroce(["run", "--libraries", "/nonexistent", "--", "true"]);
    assert_eq!(run.status, 2);
    assert!(run.stderr.contains("libibverbs.so.1 is not in /nonexistent"), "{}", run.stderr);
}

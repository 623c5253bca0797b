//! The linked library: its exports are those of the list, symbol by symbol and version by version, and a C program that knows
//! nothing of Ferroce runs with it. Skipped where there is no C compiler or no `nm`, with a word.

mod compiler;

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

fn top() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// Links the library as `scripts/verbs-c` does, into a folder of its own.
fn link(folder: &Path) -> Option<PathBuf> {
    if Command::new("cc").arg("--version").output().is_err() || Command::new("nm").arg("--version").output().is_err() {
        eprintln!("skipped: a C compiler `cc` and `nm` are needed (apt-get install gcc)");
        return None;
    }
    let script = top().join("scripts/verbs-c");
    let output = Command::new(script).arg(folder).args(["--profile", "dev"]).output().expect("bash runs");
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    Some(folder.join("libibverbs.so.1"))
}

/// `symbol version` of each export.
fn exports(library: &Path) -> BTreeSet<String> {
    let output = Command::new("nm").args(["-D", "--defined-only", "--with-symbol-versions"]).arg(library).output();
    let text = String::from_utf8(output.expect("nm runs").stdout).expect("text");
    let symbols = text.lines().filter_map(|line| line.rsplit(' ').next());
    // The version nodes themselves are absolute symbols.
    symbols.filter(|symbol| symbol.contains("@@")).map(|symbol| symbol.replace("@@", " ")).collect()
}

fn listed() -> BTreeSet<String> {
    let list = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("exports.txt")).expect("the list");
    list.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

/// Everything that can be asked without a device, by pointers that the dynamic linker found.
const PROGRAM: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <dlfcn.h>
#include <infiniband/verbs.h>

#define FIND(name) __typeof__(name) *my_##name = (__typeof__(name) *)dlvsym(library, #name, version); \
    if (!my_##name) { printf("%s is missing\n", #name); return 1; }

int main(void) {
  void *library = dlopen(LIBRARY, RTLD_NOW);
  const char *version = "IBVERBS_1.1";
  if (!library) { printf("%s\n", dlerror()); return 1; }
#undef ibv_get_device_list
  FIND(ibv_get_device_list)
  FIND(ibv_free_device_list)
  FIND(ibv_open_device)
  FIND(ibv_wc_status_str)
  FIND(ibv_fork_init)
  FIND(ibv_dealloc_pd)
  int count = -1;
  struct ibv_device **list = my_ibv_get_device_list(&count);
  if (!list || count != 0 || list[0]) return 2;
  my_ibv_free_device_list(list);
  errno = 0;
  if (my_ibv_open_device(NULL) || errno != EINVAL) return 3;
  if (my_ibv_dealloc_pd(NULL) != EINVAL) return 4;
  printf("%s %d\n", my_ibv_wc_status_str(IBV_WC_RNR_RETRY_EXC_ERR), my_ibv_fork_init());
  dlclose(library);
  return 0;
}
"#;

#[test]
fn exports_are_those_of_the_list_and_a_c_program_finds_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(library) = link(folder.path()) else { return };
    let (found, listed) = (exports(&library), listed());
    assert!(listed.len() > 100, "the list has {} symbols", listed.len());
    let (missing, more): (Vec<_>, Vec<_>) = (listed.difference(&found).collect(), found.difference(&listed).collect());
    assert!(missing.is_empty() && more.is_empty(), "missing {missing:?}, not in the list {more:?}");
    let source = format!("#define _GNU_SOURCE\n#define LIBRARY {:?}\n{PROGRAM}", library.display().to_string());
    // No daemon is where it looks.
    let Some(said) = compiler::run_with(&source, &[("FERROCE_SOCKETS", "/nonexistent.sock")]) else { return };
    assert_eq!(said, "RNR retry counter exceeded 0\n");
}

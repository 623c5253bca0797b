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
    // One version of each is the default (@@). The version nodes themselves are absolute symbols without a version.
    symbols.filter(|symbol| symbol.contains('@')).map(|symbol| symbol.replace("@@", "@").replace('@', " ")).collect()
}

fn listed(name: &str) -> BTreeSet<String> {
    let list = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join(name)).expect("the list");
    list.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect()
}

fn assert_exports(library: &Path, listed: &BTreeSet<String>) {
    let found = exports(library);
    let (missing, more): (Vec<_>, Vec<_>) = (listed.difference(&found).collect(), found.difference(listed).collect());
    assert!(missing.is_empty() && more.is_empty(), "{library:?}: missing {missing:?}, not in the list {more:?}");
}

/// Everything that can be asked without a device, by pointers that the dynamic linker found.
const PROGRAM: &str = r#"
#include <errno.h>
#include <stdio.h>
#include <string.h>
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
  /* What only providers of other releases ask for. */
  int (*command)(void) = (int (*)(void))dlvsym(library, "execute_ioctl", "IBVERBS_PRIVATE_64");
  char *datum = dlvsym(library, "verbs_allow_disassociate_destroy", "IBVERBS_PRIVATE_59");
  if (!command || command() != EOPNOTSUPP || !datum || *datum) return 5;
  void *(*alloc_buf)(void *, void *) = (void *(*)(void *, void *))dlvsym(library, "ibv_alloc_buf", "IBVERBS_1.17");
  if (!alloc_buf || alloc_buf(NULL, NULL) || errno != EOPNOTSUPP) return 6;
  int (*read_counter)(void *, void *) = (int (*)(void *, void *))dlvsym(library, "ibv_read_comp_cntr", "IBVERBS_1.18");
  if (!read_counter || read_counter(NULL, NULL) != EOPNOTSUPP) return 7;
  const char *(*opcode)(int) = (const char *(*)(int))dlvsym(library, "ibv_wr_opcode_str", "IBVERBS_PRIVATE_34");
  if (!opcode || strcmp(opcode(IBV_WR_RDMA_READ), "rdma-read") || opcode(12)) return 8;
  printf("%s %d\n", my_ibv_wc_status_str(IBV_WC_RNR_RETRY_EXC_ERR), my_ibv_fork_init());
  dlclose(library);
  return 0;
}
"#;

/// The same for the connection manager: jumps arrive where they should, with all of their arguments.
const CM_PROGRAM: &str = r#"
#include <arpa/inet.h>
#include <errno.h>
#include <stdio.h>
#include <dlfcn.h>
#include <rdma/rdma_cma.h>

#define FIND(name) __typeof__(name) *my_##name = (__typeof__(name) *)dlvsym(library, #name, "RDMACM_1.0"); \
    if (!my_##name) { printf("%s is missing\n", #name); return 1; }

int main(void) {
  void *library = dlopen(LIBRARY, RTLD_NOW);
  if (!library) { printf("%s\n", dlerror()); return 1; }
  FIND(rdma_create_event_channel)
  FIND(rdma_create_id)
  FIND(rdma_event_str)
  FIND(rdma_getaddrinfo)
  FIND(rdma_freeaddrinfo)
  int (*my_rsocket)(int, int, int) = (int (*)(int, int, int))dlvsym(library, "rsocket", "RDMACM_1.0");
  struct rdma_cm_id *id;
  if (my_rdma_create_event_channel() || errno != ENODEV) return 2;
  if (my_rdma_create_id(NULL, &id, NULL, RDMA_PS_TCP) != -1 || errno != ENODEV) return 3;
  if (my_rdma_create_id(NULL, &id, NULL, RDMA_PS_IPOIB) != -1 || errno != EOPNOTSUPP) return 4;
  if (my_rsocket(AF_INET, SOCK_STREAM, 0) != -1 || errno != ENODEV) return 5;
  struct rdma_addrinfo hints = { .ai_flags = RAI_PASSIVE | RAI_NUMERICHOST, .ai_port_space = RDMA_PS_TCP }, *found;
  if (my_rdma_getaddrinfo("10.0.0.1", "7471", &hints, &found) || found->ai_dst_addr) return 6;
  printf("%s %d\n", my_rdma_event_str(RDMA_CM_EVENT_ESTABLISHED),
         ntohs(((struct sockaddr_in *)found->ai_src_addr)->sin_port));
  my_rdma_freeaddrinfo(found);
  return 0;
}
"#;

fn rdmacm_of(library: &Path) -> String {
    library.with_file_name("librdmacm.so.1").display().to_string()
}

#[test]
fn exports_are_those_of_the_list_and_a_c_program_finds_them() {
    let folder = tempfile::tempdir().expect("a folder");
    let Some(library) = link(folder.path()) else { return };
    let rdmacm = listed("exports-rdmacm.txt");
    assert!(rdmacm.len() > 60, "the list has {} symbols", rdmacm.len());
    assert_exports(&folder.path().join("librdmacm.so.1"), &rdmacm);
    // What those jump to.
    let private = rdmacm.iter().filter_map(|line| line.split(' ').next());
    let private = private.map(|symbol| format!("ferroce_{symbol} IBVERBS_PRIVATE_FERROCE"));
    let verbs = listed("exports.txt");
    assert!(verbs.len() > 100, "the list has {} symbols", verbs.len());
    assert_exports(&library, &verbs.into_iter().chain(private).collect());
    let source = format!("#define _GNU_SOURCE\n#define LIBRARY {:?}\n{PROGRAM}", library.display().to_string());
    // No daemon is where it looks.
    let Some(said) = compiler::run_with(&source, &[("FERROCE_SOCKETS", "/nonexistent.sock")]) else { return };
    assert_eq!(said, "RNR retry counter exceeded 0\n");
    if !fs::exists("/usr/include/rdma/rdma_cma.h").unwrap_or(false) {
        eprintln!("skipped: rdma/rdma_cma.h is not installed (apt-get install librdmacm-dev)");
        return;
    }
    let source = format!("#define _GNU_SOURCE\n#define LIBRARY {:?}\n{CM_PROGRAM}", rdmacm_of(&library));
    let folder = folder.path().display().to_string();
    let variables = [("FERROCE_SOCKETS", "/nonexistent.sock"), ("LD_LIBRARY_PATH", folder.as_str())];
    let Some(said) = compiler::run_with(&source, &variables) else { return };
    assert_eq!(said, "RDMA_CM_EVENT_ESTABLISHED 7471\n");
}

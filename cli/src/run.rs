//! `ferroce run`: starts a program that was built for rdma-core, over the daemons of this host.

mod view;

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::outcome::{CommandError, Outcome};
use crate::report::printable;

/// The library that takes rdma-core's place.
const LIBRARY: &str = "libibverbs.so.1";
/// Where the dynamic linker looks first.
const LIBRARY_PATH: &str = "LD_LIBRARY_PATH";
/// Where our library looks for daemons.
const SOCKETS: &str = "FERROCE_SOCKETS";
/// The folder of sockets if nobody names one.
const SOCKET_FOLDER: &str = "/run/ferroce";
/// Folders of the library, seen from the folder of this program: as installed, and as built.
const FOLDERS: [&str; 2] = ["../lib/ferroce", "../verbs-c"];

/// Options of `ferroce run`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Folder of our libibverbs.so.1; by default ../lib/ferroce or ../verbs-c, seen from this program.
    #[arg(long, value_name = "FOLDER")]
    libraries: Option<PathBuf>,
    /// Control sockets, or folders of them (*.sock), separated by colons: a device each; by default the one of --socket if it is given,
    /// else /run/ferroce.
    #[arg(long, value_name = "PATHS", env = SOCKETS)]
    sockets: Option<OsString>,
    /// Show the devices under /sys/class/infiniband and /dev/infiniband too, in a private view of both, for programs that look
    /// there (UCX).
    #[arg(long)]
    sysfs: bool,
    /// Print the environment that the program would get, and start nothing.
    #[arg(long)]
    print_env: bool,
    /// The program and its arguments.
    #[arg(trailing_var_arg = true, required_unless_present = "print_env", value_name = "PROGRAM")]
    command: Vec<OsString>,
}

/// Why a program was not started.
#[derive(thiserror::Error, Debug)]
pub(crate) enum RunError {
    /// There is nothing to put in rdma-core's place.
    #[error("{LIBRARY} is not in {places}: build it by scripts/verbs-c, or name its folder by --libraries")]
    NoLibrary {
        /// Where it was looked for.
        places: String,
    },
    /// A folder that can't be part of the search path.
    #[error("{}: a folder of libraries can't have a colon in its name", .0.display())]
    Colon(PathBuf),
    /// There is no view of /sys and /dev to be had.
    #[error(transparent)]
    View(#[from] view::ViewError),
    /// The system does not start it.
    #[error("{} can't be started: {error}", program.to_string_lossy())]
    Exec {
        /// The program.
        program: OsString,
        /// What the system says; the sentence has it, so it is no `source`.
        error: io::Error,
    },
}

/// Becomes the program; returns only if it can't, or with --print-env. `socket` is the daemon that --socket names, if it does.
pub(crate) fn run(args: &Args, socket: Option<&Path>, out: &mut impl Write) -> Result<Outcome, CommandError> {
    let folder = library_folder(args.libraries.as_deref())?;
    let named = args.sockets.clone().or_else(|| socket.map(|socket| socket.as_os_str().to_owned()));
    let sockets = named.unwrap_or_else(|| SOCKET_FOLDER.into());
    let variables = variables(&folder, &sockets, env::var_os(LIBRARY_PATH).as_deref())?;
    let Some((program, arguments)) = args.command.split_first().filter(|_| !args.print_env) else {
        for (name, value) in &variables {
            writeln!(out, "{name}={}", printable(&value.to_string_lossy()))?;
        }
        return Ok(Outcome::Good);
    };
    out.flush()?;
    if !view::has_sockets(&sockets) {
        // It may do without devices, or wait for one.
        eprintln!("ferroce: no daemon has a socket at {}: the program finds no device", sockets.to_string_lossy());
    }
    if args.sysfs {
        let devices = view::devices(&sockets).map_err(RunError::from)?;
        view::enter(&devices).map_err(RunError::from)?;
    }
    let error = Command::new(program).args(arguments).envs(variables).exec();
    Err(RunError::Exec { program: program.clone(), error }.into())
}

/// What the program gets besides our own environment.
fn variables(
    folder: &Path,
    sockets: &OsStr,
    search_path: Option<&OsStr>,
) -> Result<[(&'static str, OsString); 2], RunError> {
    let others = search_path.map(env::split_paths).into_iter().flatten().filter(|path| !path.as_os_str().is_empty());
    let path = env::join_paths(std::iter::once(folder.to_owned()).chain(others));
    let path = path.map_err(|_| RunError::Colon(folder.to_owned()))?;
    Ok([(LIBRARY_PATH, path), (SOCKETS, sockets.to_owned())])
}

fn library_folder(named: Option<&Path>) -> Result<PathBuf, RunError> {
    let own = env::current_exe().ok().and_then(|path| path.parent().map(Path::to_owned)).unwrap_or_default();
    let places = named.map_or_else(|| FOLDERS.map(|folder| own.join(folder)).to_vec(), |named| vec![named.to_owned()]);
    // The program may change its folder before it loads a library.
    let found =
        places.iter().find(|folder| folder.join(LIBRARY).is_file()).and_then(|folder| folder.canonicalize().ok());
    let shown =
        |places: &[PathBuf]| places.iter().map(|place| place.display().to_string()).collect::<Vec<_>>().join(" or ");
    found.ok_or_else(|| RunError::NoLibrary { places: shown(&places) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn our_folder_comes_first_and_others_stay() {
        let path = |before| variables(Path::new("/f"), OsStr::new("/run/x"), before).unwrap()[0].1.clone();
        assert_eq!(path(None), "/f");
        assert_eq!(path(Some(OsStr::new("/a::/b"))), "/f:/a:/b");
        assert!(matches!(variables(Path::new("/a:b"), OsStr::new(""), None), Err(RunError::Colon(_))));
    }

    #[test]
    fn a_folder_without_the_library_is_named() {
        let error = library_folder(Some(Path::new("/nowhere"))).unwrap_err().to_string();
        assert!(error.starts_with("libibverbs.so.1 is not in /nowhere: "), "{error}");
    }
}

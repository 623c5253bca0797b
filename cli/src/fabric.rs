//! `ferroce fabric`: becomes `ferroce-fabric`, a program of its own because it needs DPDK, which this one does not.

use std::env;
use std::ffi::OsString;
use std::io::{self, Write};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;

use crate::outcome::{CommandError, Outcome};

/// The program, which lies beside this one.
const PROGRAM: &str = "ferroce-fabric";

/// Options of `ferroce fabric`.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Handed on: `ferroce fabric --help` shows what there is.
    #[arg(trailing_var_arg = true, allow_hyphen_values = true, value_name = "OPTIONS")]
    options: Vec<OsString>,
}

/// Why there is no fabric.
#[derive(thiserror::Error, Debug)]
pub(crate) enum FabricError {
    /// It is not there.
    #[error("{PROGRAM} is not beside this program, in {}: build it by `cargo build -p ferroce-fabric` where DPDK is installed", .0.display())]
    NoProgram(PathBuf),
    /// The system does not start it.
    #[error("{} can't be started: {error}", program.display())]
    Exec {
        /// The program.
        program: PathBuf,
        /// What the system says; the sentence has it, so it is no `source`.
        error: io::Error,
    },
}

/// Becomes the program; returns only if it can't.
pub(crate) fn run(args: &Args, json: bool, out: &mut impl Write) -> Result<Outcome, CommandError> {
    let folder = env::current_exe().ok().and_then(|path| path.parent().map(PathBuf::from)).unwrap_or_default();
    out.flush()?;
    Err(become_program(folder, args, json).into())
}

fn become_program(folder: PathBuf, args: &Args, json: bool) -> FabricError {
    let program = folder.join(PROGRAM);
    if !program.is_file() {
        return FabricError::NoProgram(folder);
    }
    // The option is of this program, too, and was taken from the others.
    let json = json.then(|| OsString::from("--json"));
    let error = Command::new(&program).args(&args.options).args(json).exec();
    FabricError::Exec { program, error }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_program_that_is_not_there_or_does_not_start_is_named() {
        let folder = tempfile::tempdir().unwrap();
        let args = Args { options: Vec::new() };
        let missing = become_program(folder.path().to_owned(), &args, false).to_string();
        assert!(missing.starts_with("ferroce-fabric is not beside this program, in "), "{missing}");
        // A file that nobody may execute.
        fs::write(folder.path().join(PROGRAM), "").unwrap();
        let refused = become_program(folder.path().to_owned(), &args, true).to_string();
        assert!(refused.contains("can't be started: "), "{refused}");
    }
}

//! How a command ends, and the exit status that says so.

use std::io;
use std::process::ExitCode;

use ferroce::VerbsError;

use crate::client::ClientError;
use crate::fabric::FabricError;
use crate::pcap::CaptureError;
use crate::pingpong::PingpongError;
use crate::run::RunError;

/// End of a command that could give its answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Outcome {
    /// Nothing to complain about: exit status 0.
    Good,
    /// The answer is a negative one, such as a wrong ICRC: exit status 1.
    Negative,
}

impl From<Outcome> for ExitCode {
    fn from(outcome: Outcome) -> Self {
        match outcome {
            Outcome::Good => Self::SUCCESS,
            Outcome::Negative => Self::from(1),
        }
    }
}

/// Why a command has no answer.
#[derive(thiserror::Error, Debug)]
pub(crate) enum CommandError {
    /// The daemon.
    #[error(transparent)]
    Client(#[from] ClientError),
    /// A verb, or a connection.
    #[error(transparent)]
    Verbs(#[from] VerbsError),
    /// The capture file.
    #[error(transparent)]
    Capture(#[from] CaptureError),
    /// The pingpong.
    #[error(transparent)]
    Pingpong(#[from] PingpongError),
    /// A program that was to be started.
    #[error(transparent)]
    Run(#[from] RunError),
    /// The switch that was to be started.
    #[error(transparent)]
    Fabric(#[from] FabricError),
    /// Words that make no sense together.
    #[error("{0}")]
    Usage(String),
    /// Standard output.
    #[error("can't write the output: {0}")]
    Output(#[from] io::Error),
}

impl From<serde_json::Error> for CommandError {
    fn from(error: serde_json::Error) -> Self {
        // Nothing that is serialized here can fail by itself: only the writer can.
        Self::Output(error.into())
    }
}

impl CommandError {
    /// 1 if the daemon said no, else 2: also if what was asked for cannot be, whoever asks.
    pub(crate) fn exit_code(&self) -> ExitCode {
        match self {
            Self::Client(ClientError::Refused { .. }) | Self::Verbs(VerbsError::Refused { .. } | VerbsError::Cm(_)) => {
                ExitCode::from(1)
            }
            Self::Pingpong(error) if error.is_negative() => ExitCode::from(1),
            _ => ExitCode::from(2),
        }
    }
}

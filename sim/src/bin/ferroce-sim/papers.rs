//! `ferroce-sim papers`: published results, and ours beside them.

use std::fmt::Write as _;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context, bail};
use clap::Args;
use sim::papers::{ALL, CheckOutcome, Drawing, Paper, Study};

/// Which results, and what is to come of them.
#[derive(Args, Debug)]
pub(crate) struct PapersArgs {
    /// Which: R1, R2 and so on, or a file of one's own (`mine.toml`); all that are built in if none is given.
    #[arg(value_name = "ID")]
    ids: Vec<String>,
    /// Draws their charts, too, and writes them and a table of the results into this folder, which is made if it is not there.
    #[arg(long, value_name = "DIR")]
    report: Option<PathBuf>,
    /// Runs every case with seeds 1 to N instead of the file's own: a number is their median, with the least and the largest.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=1000))]
    seeds: Option<u64>,
    /// At a larger scale, where a file has one: takes long.
    #[arg(long)]
    full: bool,
}

/// Runs papers and tells of them. False if a number is not in its range, and the file does not say why.
pub(crate) fn run(args: &PapersArgs) -> anyhow::Result<bool> {
    // All of them are read before the first is run.
    let texts = match args.ids.as_slice() {
        [] => ALL.into_iter().map(|(id, text)| (id.to_owned(), text.to_owned())).collect(),
        ids => ids.iter().map(|id| Ok((id.clone(), text(id)?))).collect::<anyhow::Result<Vec<_>>>()?,
    };
    let parse = |(id, text): &(String, String)| Paper::parse(text).with_context(|| format!("result {id}"));
    let papers = texts.iter().map(parse).collect::<anyhow::Result<Vec<Paper>>>()?;
    if let Some(directory) = &args.report {
        std::fs::create_dir_all(directory).with_context(|| format!("making {}", directory.display()))?;
    }
    let mut all_pass = true;
    for paper in &papers {
        all_pass &= run_one(paper, args).with_context(|| format!("result {}", paper.id))?;
    }
    Ok(all_pass)
}

/// The text of a built-in paper file, or of somebody's own.
fn text(id: &str) -> anyhow::Result<String> {
    if Path::new(id).extension().is_some_and(|extension| extension == "toml") {
        return std::fs::read_to_string(id).with_context(|| format!("reading {id}"));
    }
    match ALL.iter().find(|(known, _)| known.eq_ignore_ascii_case(id)) {
        Some((_, text)) => Ok((*text).to_owned()),
        None => {
            let known: Vec<&str> = ALL.iter().map(|(id, _)| *id).collect();
            bail!("there is no result `{id}`: there are {}, and files that end in .toml", known.join(", "))
        }
    }
}

fn run_one(paper: &Paper, args: &PapersArgs) -> anyhow::Result<bool> {
    let mut study = Study::new(paper, args.full, args.seeds);
    let mut out = std::io::stdout().lock();
    writeln!(out, "{}  {}\n    source  {}\n    scale   {}", paper.id, paper.claim, paper.source, study.scale())?;
    let outcomes = study.check()?;
    write!(out, "{}", lines(&outcomes))?;
    if let Some(directory) = &args.report {
        let drawings = study.draw()?;
        for drawing in &drawings {
            write_file(&directory.join(format!("{}.svg", drawing.file)), &drawing.svg)?;
        }
        let page = page(paper, &study, &outcomes, &drawings);
        write_file(&directory.join(format!("{}.md", paper.id.to_lowercase())), &page)?;
    }
    let (runs, packet_events) = study.cost();
    writeln!(out, "    {runs} runs, {:.1} million packet events\n", packet_events as f64 / 1e6)?;
    Ok(!outcomes.iter().any(CheckOutcome::is_surprise))
}

fn write_file(path: &Path, text: &str) -> anyhow::Result<()> {
    std::fs::write(path, text).with_context(|| format!("writing {}", path.display()))
}

fn verdict(outcome: &CheckOutcome) -> &'static str {
    if outcome.passes { "passes" } else { "differs" }
}

fn lines(outcomes: &[CheckOutcome]) -> String {
    let mut text = String::new();
    for outcome in outcomes {
        let CheckOutcome { what, published, ours, tolerance, why, .. } = outcome;
        let _ = writeln!(text, "    {:<7} {what}", verdict(outcome));
        let _ = writeln!(text, "            ours {ours}; published {published}; passes {tolerance}");
        if let Some(why) = why {
            let _ = writeln!(text, "            {why}");
        }
    }
    text
}

/// The result as a page for `docs/`.
fn page(paper: &Paper, study: &Study<'_>, outcomes: &[CheckOutcome], drawings: &[Drawing]) -> String {
    let Paper { id, claim, source, .. } = paper;
    let mut text = format!("# {id}: {claim}\n\nWritten by `ferroce-sim papers {id} --report DIR`.\n\n");
    let seeds = match study.seeds().len() {
        1 => String::new(),
        count => format!(" Medians of {count} seeds, with the least and the largest."),
    };
    let _ = writeln!(text, "* Source: {source}\n* Ours: {}{seeds}\n", study.scale());
    let _ = writeln!(text, "| | published | ours | passes | |\n|---|---|---|---|---|");
    for outcome in outcomes {
        let CheckOutcome { what, published, ours, tolerance, .. } = outcome;
        let _ = writeln!(text, "| {what} | {published} | {ours} | {tolerance} | {} |", verdict(outcome));
    }
    for (what, why) in outcomes.iter().filter_map(|outcome| Some((&outcome.what, outcome.why.as_ref()?))) {
        let _ = write!(text, "\n*{what}*: {why}\n");
    }
    for Drawing { file, title, .. } in drawings {
        let _ = write!(text, "\n![{title}]({file}.svg)\n");
    }
    text
}

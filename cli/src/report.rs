//! The two forms of an answer: text for people, JSON for programs, both from the same fields.

use std::io::{self, Write};

use comfy_table::{CellAlignment, Table, presets};
use serde::ser::{Serialize, Serializer};
use serde_json::Value;

/// One thing known: its name, its value, and what text adds to it in parentheses.
struct Field {
    name: &'static str,
    value: Value,
    note: Option<String>,
}

/// Fields in the order of display. JSON is an object of the values; notes are for people only.
#[derive(Default)]
pub(crate) struct Fields(Vec<Field>);

impl Fields {
    /// Adds a field.
    pub(crate) fn add(&mut self, name: &'static str, value: impl Into<Value>) -> &mut Self {
        self.0.push(Field { name, value: value.into(), note: None });
        self
    }

    /// Adds a field with a note.
    pub(crate) fn add_noted(&mut self, name: &'static str, value: impl Into<Value>, note: impl ToString) -> &mut Self {
        self.0.push(Field { name, value: value.into(), note: Some(note.to_string()) });
        self
    }

    /// Writes a line a field, values in one column, each line behind `indent`.
    pub(crate) fn write_text(&self, out: &mut impl Write, indent: &str) -> io::Result<()> {
        let width = self.0.iter().map(|field| field.name.len()).max().unwrap_or(0);
        for Field { name, value, note } in &self.0 {
            write!(out, "{indent}{name:width$}  {}", text(value))?;
            match note {
                Some(note) => writeln!(out, " ({})", printable(note))?,
                None => writeln!(out)?,
            }
        }
        Ok(())
    }
}

impl Serialize for Fields {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|field| (field.name, &field.value)))
    }
}

/// Named values that keep their order as a JSON object.
pub(crate) struct Pairs<'a, T>(pub(crate) &'a [(String, T)]);

impl<T: Serialize> Serialize for Pairs<'_, T> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.0.iter().map(|(name, value)| (name, value)))
    }
}

/// A value for people.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "-".to_owned(),
        Value::Bool(true) => "yes".to_owned(),
        Value::Bool(false) => "no".to_owned(),
        Value::Array(items) if items.is_empty() => "-".to_owned(),
        Value::Array(items) => items.iter().map(text).collect::<Vec<_>>().join(" "),
        Value::String(text) if text.is_empty() => "-".to_owned(),
        Value::String(text) => printable(text),
        Value::Number(_) | Value::Object(_) => value.to_string(),
    }
}

/// The text with control characters escaped: names come from other processes and shall not drive the terminal.
pub(crate) fn printable(text: &str) -> String {
    let mut safe = String::with_capacity(text.len());
    for c in text.chars() {
        if c.is_control() { safe.extend(c.escape_default()) } else { safe.push(c) }
    }
    safe
}

/// A QPN, as everywhere: 0x and six digits.
pub(crate) fn qpn(number: u32) -> String {
    format!("{number:#08x}")
}

/// A time of any size in the unit that suits it.
pub(crate) fn duration(ns: u64) -> String {
    let (unit_ns, unit) = match ns {
        0..1_000 => (1, "ns"),
        1_000..1_000_000 => (1_000, "us"),
        1_000_000..1_000_000_000 => (1_000_000, "ms"),
        _ => (1_000_000_000, "s"),
    };
    let hundredths = u128::from(ns) * 100 / unit_ns;
    let number = format!("{}.{:02}", hundredths / 100, hundredths % 100);
    format!("{} {unit}", number.trim_end_matches('0').trim_end_matches('.'))
}

/// A table without lines, so that `awk` reads it as well as people. `numeric` columns are aligned to the right.
pub(crate) fn table(header: &[&str], numeric: &[usize], rows: impl IntoIterator<Item = Vec<String>>) -> Table {
    let mut table = Table::new();
    table.load_style(presets::NOTHING);
    if !header.is_empty() {
        table.set_header(header);
    }
    table.add_rows(rows);
    for (index, column) in table.column_iter_mut().enumerate() {
        column.set_padding((0, 2));
        if numeric.contains(&index) {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    table
}

/// Writes a table, each line behind `indent`.
pub(crate) fn write_table(out: &mut impl Write, table: &Table, indent: &str) -> io::Result<()> {
    table.lines().try_for_each(|line| writeln!(out, "{indent}{}", line.trim_end()))
}

/// Writes a value as one line of JSON.
pub(crate) fn write_json(out: &mut impl Write, value: &impl Serialize) -> serde_json::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    writeln!(out).map_err(serde_json::Error::io)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn duration_has_the_unit_that_suits_it() {
        let texts = [0, 999, 1_000, 640_000, 67_108_864, 999_999_999, 1_000_000_000, 8_796_093_022_208].map(duration);
        assert_eq!(texts, ["0 ns", "999 ns", "1 us", "640 us", "67.1 ms", "999.99 ms", "1 s", "8796.09 s"]);
        assert_eq!(duration(100_000), "100 us");
    }

    #[test]
    fn printable_escapes_what_drives_a_terminal() {
        assert_eq!(printable("a\u{1b}[2Jb\n\u{9b}ü"), "a\\u{1b}[2Jb\\n\\u{9b}ü");
    }

    #[test]
    fn fields_are_aligned_text_and_ordered_json() {
        let mut fields = Fields::default();
        fields.add_noted("mtu", 1024, "3").add("access", vec!["A", "B"]).add("up", true).add("peer", Value::Null);
        let mut out = Vec::new();
        fields.write_text(&mut out, " ").unwrap();
        assert_eq!(String::from_utf8(out).unwrap(), " mtu     1024 (3)\n access  A B\n up      yes\n peer    -\n");
        let json = serde_json::to_string(&fields).unwrap();
        assert_eq!(json, r#"{"mtu":1024,"access":["A","B"],"up":true,"peer":null}"#);
    }
}

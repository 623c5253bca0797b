//! A Rust source file as the tidiness checks see it: its tokens, so that neither comments nor strings mislead them.

use std::ops::RangeInclusive;

use proc_macro2::{Delimiter, TokenStream, TokenTree};

/// `mod name;`, whose file is still to be found.
pub(crate) struct Module {
    /// Names of the inline modules around it, then its own.
    pub(crate) path: Vec<String>,
    /// The value of a `#[path = "..."]` before it.
    pub(crate) file: Option<String>,
    /// Whether it, or a module around it, is for tests only.
    pub(crate) test: bool,
}

/// A function that has a body.
pub(crate) struct Function {
    pub(crate) name: String,
    /// From `fn` to the closing brace; 1-based.
    pub(crate) lines: RangeInclusive<usize>,
    pub(crate) test: bool,
}

/// A word that a check looks at, and its 1-based line.
pub(crate) struct Word {
    pub(crate) text: String,
    pub(crate) line: usize,
    pub(crate) test: bool,
}

/// What the checks need to know of a file.
#[derive(Default)]
pub(crate) struct Source {
    pub(crate) text: String,
    pub(crate) modules: Vec<Module>,
    pub(crate) functions: Vec<Function>,
    /// Memory orderings other than `Relaxed` where they are used, not where they are imported.
    pub(crate) orderings: Vec<Word>,
    /// Macros called, without the `!`.
    pub(crate) macros: Vec<Word>,
    /// Attributes without brackets and spaces, e.g. `forbid(unsafe_code)`.
    pub(crate) attributes: Vec<Word>,
    /// The lines of inline modules that are for tests only.
    pub(crate) test_lines: Vec<RangeInclusive<usize>>,
}

const ORDERINGS: [&str; 4] = ["Acquire", "Release", "AcqRel", "SeqCst"];

/// Where the scan is.
#[derive(Clone)]
struct Place {
    modules: Vec<String>,
    test: bool,
}

impl Source {
    /// Scans a file.
    ///
    /// # Errors
    /// The message of the lexer if this is not Rust.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let tokens: TokenStream = text.parse().map_err(|error: proc_macro2::LexError| error.to_string())?;
        let mut source = Self { text: text.to_owned(), ..Self::default() };
        source.scan(tokens, &Place { modules: Vec::new(), test: false });
        Ok(source)
    }

    /// Lines outside of test modules.
    pub(crate) fn production_line_count(&self) -> usize {
        let tests: usize = self.test_lines.iter().map(|lines| lines.end() + 1 - lines.start()).sum();
        self.text.lines().count() - tests
    }

    fn scan(&mut self, tokens: TokenStream, place: &Place) {
        let tokens: Vec<TokenTree> = tokens.into_iter().collect();
        // Of the item that comes next: whether its attributes say that it is for tests, and its file.
        let (mut test, mut file) = (false, None);
        let mut i = 0;
        while i < tokens.len() {
            let rest = &tokens[i..];
            if let Some((text, line, length)) = attribute(rest) {
                test |= text == "test" || text.starts_with("cfg(test") || text.starts_with("cfg(all(test");
                if let Some(path) = text.strip_prefix("path=") {
                    file = Some(path.trim_matches('"').to_owned());
                }
                self.attributes.push(Word { text, line, test: place.test });
                i += length;
                continue;
            }
            let here = Place { modules: place.modules.clone(), test: place.test || test };
            i += match rest {
                [TokenTree::Ident(word), ..] if word == "use" && !is_punct(rest.get(1), '<') => {
                    rest.iter().position(|token| is_punct(Some(token), ';')).unwrap_or(rest.len())
                }
                [TokenTree::Ident(word), TokenTree::Ident(name), ..] if word == "mod" => {
                    let length = self.module(&name.to_string(), rest.get(2), file.take(), &here);
                    test = false;
                    length
                }
                [TokenTree::Ident(word), TokenTree::Ident(name), ..] if word == "fn" => {
                    self.function(&name.to_string(), rest, here.test);
                    2
                }
                [TokenTree::Ident(word), ..] => {
                    self.word(word, rest.get(1), here.test);
                    1
                }
                [TokenTree::Group(group), ..] => {
                    self.scan(group.stream(), &here);
                    // Parentheses and brackets belong to an item that has not ended yet.
                    test &= group.delimiter() != Delimiter::Brace;
                    1
                }
                [token, ..] => {
                    test &= !is_punct(Some(token), ';');
                    1
                }
                [] => unreachable!("the loop ends before"),
            };
        }
    }

    /// `mod name` with what follows; returns how many tokens it took.
    fn module(&mut self, name: &str, body: Option<&TokenTree>, file: Option<String>, here: &Place) -> usize {
        let mut inner = here.clone();
        inner.modules.push(name.to_owned());
        match body {
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                if here.test {
                    self.test_lines.push(group.span_open().start().line..=group.span_close().end().line);
                }
                self.scan(group.stream(), &inner);
                3
            }
            _ => {
                self.modules.push(Module { path: inner.modules, file, test: here.test });
                2
            }
        }
    }

    fn function(&mut self, name: &str, tokens: &[TokenTree], test: bool) {
        let mut item = tokens.iter().take_while(|token| !is_punct(Some(token), ';'));
        let body = item.find_map(|token| match token {
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => Some(group),
            _ => None,
        });
        if let Some(body) = body {
            let lines = tokens[0].span().start().line..=body.span_close().end().line;
            self.functions.push(Function { name: name.to_owned(), lines, test });
        }
    }

    fn word(&mut self, word: &proc_macro2::Ident, next: Option<&TokenTree>, test: bool) {
        let (text, line) = (word.to_string(), word.span().start().line);
        if is_punct(next, '!') {
            self.macros.push(Word { text, line, test });
        } else if ORDERINGS.contains(&text.as_str()) {
            self.orderings.push(Word { text, line, test });
        }
    }
}

/// An attribute at the start of `tokens`: its text, line, and how many tokens it is.
fn attribute(tokens: &[TokenTree]) -> Option<(String, usize, usize)> {
    let inner = usize::from(is_punct(tokens.get(1), '!'));
    match (tokens.first(), tokens.get(1 + inner)) {
        (Some(TokenTree::Punct(hash)), Some(TokenTree::Group(group)))
            if hash.as_char() == '#' && group.delimiter() == Delimiter::Bracket =>
        {
            let text = group.stream().to_string().split_whitespace().collect();
            Some((text, hash.span().start().line, 2 + inner))
        }
        _ => None,
    }
}

fn is_punct(token: Option<&TokenTree>, character: char) -> bool {
    matches!(token, Some(TokenTree::Punct(punct)) if punct.as_char() == character)
}

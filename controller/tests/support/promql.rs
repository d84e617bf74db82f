//! The part of PromQL that the alerts and the dashboard use: a parser that rejects everything else, and an evaluation
//! over scrapes of a program.

use std::collections::{BTreeMap, BTreeSet};

/// Labels of a series, without its name.
pub type Labels = BTreeMap<String, String>;

/// The labels of a series, and its value at one time.
pub type Sample = (Labels, f64);

/// An expression.
#[derive(Clone, Debug, PartialEq)]
pub enum Expr {
    Number(f64),
    Selector(Selector),
    Call(String, Vec<Expr>),
    /// `sum by (labels) (expression)`.
    Aggregate(String, Vec<String>, Box<Expr>),
    /// `left operator on (labels) right`.
    Binary(Box<Expr>, String, Option<Vec<String>>, Box<Expr>),
}

/// Selects series by the name of the metric and by labels. A matcher is a label, an operator and a value. `range` is in
/// seconds.
#[derive(Clone, Debug, PartialEq)]
pub struct Selector {
    pub name: String,
    pub matchers: Vec<(String, String, String)>,
    pub range: Option<f64>,
}

/// The metrics of a program at one time. The time is in seconds.
#[derive(Clone, Debug, Default)]
pub struct Scrape {
    pub time: f64,
    pub series: BTreeMap<String, Vec<Sample>>,
}

/// Scrapes, oldest first.
#[derive(Clone, Debug, Default)]
pub struct History(pub Vec<Scrape>);

struct Parser {
    tokens: Vec<String>,
    at: usize,
}

/// A function of a series. Its input is the samples in a range, each as time and value, and the length of the range in
/// seconds.
type Over<'o> = &'o dyn Fn(&[(f64, f64)], f64) -> Option<f64>;

/// The binary operators, in groups of equal precedence, from the lowest precedence to the highest.
const OPERATORS: [&[&str]; 5] =
    [&["or"], &["and", "unless"], &["==", "!=", "<=", ">=", "<", ">"], &["+", "-"], &["*", "/"]];
const AGGREGATES: [&str; 4] = ["sum", "min", "max", "count"];
const FUNCTIONS: [&str; 6] = ["rate", "increase", "max_over_time", "histogram_quantile", "absent", "time"];

// === impl Expr ===

impl Expr {
    /// Parses an expression.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut parser = Parser { tokens: tokens(text)?, at: 0 };
        let expr = parser.binary(0)?;
        match parser.peek() {
            None => Ok(expr),
            Some(token) => Err(format!("unexpected {token:?} in {text:?}")),
        }
    }

    /// Returns all selectors in the expression.
    pub fn selectors(&self) -> Vec<&Selector> {
        match self {
            Self::Number(_) => Vec::new(),
            Self::Selector(selector) => vec![selector],
            Self::Call(_, all) => all.iter().flat_map(Self::selectors).collect(),
            Self::Aggregate(_, _, of) => of.selectors(),
            Self::Binary(left, _, _, right) => left.selectors().into_iter().chain(right.selectors()).collect(),
        }
    }

    /// Returns each label in a `by (…)` or `on (…)` of an expression, with the selectors of the series that must have
    /// this label.
    pub fn labels(&self) -> Vec<(&String, Vec<&Selector>)> {
        match self {
            Self::Number(_) | Self::Selector(_) => Vec::new(),
            Self::Call(_, all) => all.iter().flat_map(Self::labels).collect(),
            Self::Aggregate(_, by, of) => by.iter().map(|label| (label, of.selectors())).chain(of.labels()).collect(),
            Self::Binary(left, _, on, right) => {
                let on = on.iter().flatten().map(|label| (label, self.selectors()));
                on.chain(left.labels()).chain(right.labels()).collect()
            }
        }
    }

    /// Evaluates the expression at a time.
    pub fn eval(&self, history: &History, time: f64) -> Vec<Sample> {
        match self {
            Self::Number(number) => vec![(Labels::new(), *number)],
            Self::Selector(selector) => history.at(time).map(|scrape| scrape.select(selector)).unwrap_or_default(),
            Self::Call(name, all) => call(name, all, history, time),
            Self::Aggregate(how, by, of) => {
                let mut groups: BTreeMap<Labels, Vec<f64>> = BTreeMap::new();
                for (labels, value) in of.eval(history, time) {
                    groups.entry(only(&labels, by)).or_default().push(value);
                }
                groups.into_iter().map(|(labels, values)| (labels, aggregate(how, &values))).collect()
            }
            Self::Binary(left, operator, on, right) => {
                let scalars = [left, right].map(|side| side.is_scalar());
                let (left, right) = (left.eval(history, time), right.eval(history, time));
                binary((left, right), operator, on.as_deref(), scalars)
            }
        }
    }

    fn is_scalar(&self) -> bool {
        match self {
            Self::Number(_) => true,
            Self::Call(name, _) => name == "time",
            Self::Binary(left, _, _, right) => left.is_scalar() && right.is_scalar(),
            Self::Selector(_) | Self::Aggregate(..) => false,
        }
    }
}

fn call(name: &str, all: &[Expr], history: &History, time: f64) -> Vec<Sample> {
    let over = |of: Over<'_>| {
        let Some(Expr::Selector(selector)) = all.first() else { panic!("{name} of no selector") };
        let range = selector.range.unwrap_or_else(|| panic!("{name} without a range"));
        let mut samples: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
        for scrape in history.0.iter().filter(|scrape| scrape.time > time - range && scrape.time <= time) {
            for (labels, value) in scrape.select(selector) {
                samples.entry(labels).or_default().push((scrape.time, value));
            }
        }
        samples.into_iter().filter_map(|(labels, all)| Some((labels, of(&all, range)?))).collect()
    };
    match name {
        "time" => vec![(Labels::new(), time)],
        "rate" => over(&|samples, range| Some(increase(samples, time, range)? / range)),
        "increase" => over(&|samples, range| increase(samples, time, range)),
        "max_over_time" => over(&|samples, _| samples.iter().map(|(_, value)| *value).reduce(f64::max)),
        "absent" => match all[0].eval(history, time).is_empty() {
            true => vec![(Labels::new(), 1.0)],
            false => Vec::new(),
        },
        "histogram_quantile" => {
            let Expr::Number(quantile) = all[0] else { panic!("a quantile that is no number") };
            let mut groups: BTreeMap<Labels, Vec<(f64, f64)>> = BTreeMap::new();
            for (mut labels, value) in all[1].eval(history, time) {
                let le = labels.remove("le").unwrap();
                let le = if le == "+Inf" { f64::INFINITY } else { le.parse().unwrap() };
                groups.entry(labels).or_default().push((le, value));
            }
            groups.into_iter().filter_map(|(labels, buckets)| Some((labels, quantile_of(quantile, buckets)?))).collect()
        }
        _ => panic!("{name}"),
    }
}

/// Returns the increase of a counter in the last `range` seconds. Like Prometheus, extrapolates to an end of the range
/// if a sample is near this end, and otherwise by half the average interval between samples. Never extrapolates to a
/// time at which the counter would have been negative.
fn increase(samples: &[(f64, f64)], time: f64, range: f64) -> Option<f64> {
    let (first, last) = (samples.first()?, samples.last()?);
    let increases =
        samples.windows(2).map(|pair| if pair[1].1 < pair[0].1 { pair[1].1 } else { pair[1].1 - pair[0].1 });
    let (sum, sampled) = (increases.sum::<f64>(), last.0 - first.0);
    if sampled <= 0.0 {
        return None;
    }
    let average = sampled / f64::from(u32::try_from(samples.len() - 1).unwrap());
    let mut before = first.0 - (time - range);
    if sum > 0.0 {
        before = before.min(sampled * first.1 / sum);
    }
    let near = |gap: f64| if gap < average * 1.1 { gap } else { average / 2.0 };
    Some(sum * (sampled + near(before) + near(time - last.0)) / sampled)
}

fn quantile_of(quantile: f64, mut buckets: Vec<(f64, f64)>) -> Option<f64> {
    buckets.sort_by(|a, b| a.0.total_cmp(&b.0));
    let rank = buckets.last()?.1 * quantile;
    if rank <= 0.0 {
        return None;
    }
    let (mut lower, mut below) = (0.0, 0.0);
    for (upper, count) in buckets {
        if count >= rank {
            return Some(if upper.is_finite() {
                lower + (upper - lower) * (rank - below) / (count - below)
            } else {
                lower
            });
        }
        (lower, below) = (upper, count);
    }
    None
}

fn aggregate(how: &str, values: &[f64]) -> f64 {
    match how {
        "sum" => values.iter().sum(),
        "min" => values.iter().copied().fold(f64::INFINITY, f64::min),
        "max" => values.iter().copied().fold(f64::NEG_INFINITY, f64::max),
        _ => values.len() as f64,
    }
}

fn binary(
    (left, right): (Vec<Sample>, Vec<Sample>),
    operator: &str,
    on: Option<&[String]>,
    scalars: [bool; 2],
) -> Vec<Sample> {
    let key = |labels: &Labels| on.map_or_else(|| labels.clone(), |on| only(labels, on));
    let keys = |side: &[Sample]| -> BTreeSet<Labels> { side.iter().map(|(labels, _)| key(labels)).collect() };
    match operator {
        "and" => {
            let right = keys(&right);
            return left.into_iter().filter(|(labels, _)| right.contains(&key(labels))).collect();
        }
        "unless" => {
            let right = keys(&right);
            return left.into_iter().filter(|(labels, _)| !right.contains(&key(labels))).collect();
        }
        "or" => {
            let known = keys(&left);
            let more = right.into_iter().filter(|(labels, _)| !known.contains(&key(labels)));
            return left.into_iter().chain(more).collect();
        }
        _ => {}
    }
    let pairs: Vec<(Labels, f64, f64)> = match scalars {
        [_, true] => left.into_iter().map(|(labels, value)| (labels, value, right[0].1)).collect(),
        [true, false] => right.into_iter().map(|(labels, value)| (labels, left[0].1, value)).collect(),
        [false, false] => left
            .into_iter()
            .filter_map(|(labels, value)| {
                let (_, other) = right.iter().find(|(other, _)| key(other) == key(&labels))?;
                Some((labels, value, *other))
            })
            .collect(),
    };
    let result = pairs.into_iter().filter_map(|(labels, a, b)| {
        let value = match operator {
            "+" => Some(a + b),
            "-" => Some(a - b),
            "*" => Some(a * b),
            "/" => Some(a / b),
            "==" => (a == b).then_some(a),
            "!=" => (a != b).then_some(a),
            "<" => (a < b).then_some(a),
            ">" => (a > b).then_some(a),
            "<=" => (a <= b).then_some(a),
            _ => (a >= b).then_some(a),
        };
        Some((labels, value?))
    });
    result.collect()
}

fn only(labels: &Labels, names: &[String]) -> Labels {
    labels.iter().filter(|(name, _)| names.contains(name)).map(|(name, value)| (name.clone(), value.clone())).collect()
}

// === impl Parser ===

fn tokens(text: &str) -> Result<Vec<String>, String> {
    let (mut tokens, mut rest) = (Vec::new(), text.trim_start());
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    while let Some(first) = rest.chars().next() {
        let length = match first {
            '"' => rest[1..].find('"').ok_or("a string without an end")? + 2,
            _ if is_word(first) => rest.find(|c| !is_word(c)).unwrap_or(rest.len()),
            '=' | '!' | '<' | '>' if rest[1..].starts_with(['=', '~']) => 2,
            '(' | ')' | '{' | '}' | '[' | ']' | ',' | '=' | '<' | '>' | '+' | '-' | '*' | '/' => 1,
            _ => return Err(format!("unexpected {first:?} in {text:?}")),
        };
        tokens.push(rest[..length].to_owned());
        rest = rest[length..].trim_start();
    }
    Ok(tokens)
}

impl Parser {
    fn peek(&self) -> Option<&str> {
        self.tokens.get(self.at).map(String::as_str)
    }

    fn next(&mut self) -> Result<String, String> {
        self.at += 1;
        self.tokens.get(self.at - 1).cloned().ok_or_else(|| "an expression without its end".to_owned())
    }

    fn take(&mut self, token: &str) -> bool {
        let is_it = self.peek() == Some(token);
        self.at += usize::from(is_it);
        is_it
    }

    fn expect(&mut self, token: &str) -> Result<(), String> {
        match self.next()? {
            found if found == token => Ok(()),
            found => Err(format!("{found:?}, expected {token:?}")),
        }
    }

    fn binary(&mut self, level: usize) -> Result<Expr, String> {
        let Some(operators) = OPERATORS.get(level) else { return self.operand() };
        let mut left = self.binary(level + 1)?;
        while let Some(operator) = self.peek().filter(|token| operators.contains(token)).map(str::to_owned) {
            self.at += 1;
            let on = if self.take("on") { Some(self.names()?) } else { None };
            let right = self.binary(level + 1)?;
            left = Expr::Binary(Box::new(left), operator, on, Box::new(right));
        }
        Ok(left)
    }

    fn operand(&mut self) -> Result<Expr, String> {
        let token = self.next()?;
        if token == "(" {
            let inner = self.binary(0)?;
            self.expect(")")?;
            return Ok(inner);
        }
        if let Ok(number) = token.parse() {
            return Ok(Expr::Number(number));
        }
        if AGGREGATES.contains(&&*token) {
            let by = if self.take("by") { self.names()? } else { Vec::new() };
            self.expect("(")?;
            let of = self.binary(0)?;
            self.expect(")")?;
            return Ok(Expr::Aggregate(token, by, Box::new(of)));
        }
        if FUNCTIONS.contains(&&*token) {
            self.expect("(")?;
            let mut all = Vec::new();
            while !self.take(")") {
                all.push(self.binary(0)?);
                self.take(",");
            }
            return Ok(Expr::Call(token, all));
        }
        if !token.starts_with(|c: char| c.is_ascii_alphabetic()) || self.peek() == Some("(") {
            return Err(format!("{token:?}, expected a known function or a metric"));
        }
        let mut selector = Selector { name: token, matchers: Vec::new(), range: None };
        if self.take("{") {
            while !self.take("}") {
                let (label, operator, value) = (self.next()?, self.next()?, self.next()?);
                let value = value.strip_prefix('"').and_then(|value| value.strip_suffix('"')).ok_or("no string")?;
                if !["=", "!=", "=~", "!~"].contains(&&*operator) {
                    return Err(format!("{operator:?}, expected an operator for labels"));
                }
                selector.matchers.push((label, operator, value.to_owned()));
                self.take(",");
            }
        }
        if self.take("[") {
            let range = self.next()?;
            let (number, unit) = range.split_at(range.len() - 1);
            let unit = ["s", "m", "h"].iter().position(|known| *known == unit).ok_or("no unit of time")?;
            let number: f64 = number.parse().map_err(|_| format!("invalid range {range:?}"))?;
            selector.range = Some(number * [1.0, 60.0, 3600.0][unit]);
            self.expect("]")?;
        }
        Ok(Expr::Selector(selector))
    }

    fn names(&mut self) -> Result<Vec<String>, String> {
        self.expect("(")?;
        let mut names = Vec::new();
        while !self.take(")") {
            names.push(self.next()?);
            self.take(",");
        }
        Ok(names)
    }
}

// === impl Scrape ===

impl Scrape {
    /// Reads the metrics of a program, in the OpenMetrics text format. `target` contains the labels that Prometheus
    /// adds.
    pub fn read(text: &str, time: f64, target: &[(&str, &str)]) -> Self {
        assert_eq!(text.lines().last(), Some("# EOF"));
        let mut series: BTreeMap<String, Vec<Sample>> = BTreeMap::new();
        for line in text.lines().filter(|line| !line.starts_with('#')) {
            let (name, value) = line.rsplit_once(' ').unwrap();
            let (name, labels) = name.split_once('{').unwrap_or((name, ""));
            let mut labels = read_labels(labels.trim_end_matches('}'));
            for (name, value) in target {
                labels.entry((*name).to_owned()).or_insert_with(|| (*value).to_owned());
            }
            series.entry(name.to_owned()).or_default().push((labels, value.parse().unwrap()));
        }
        Self { time, series }
    }

    /// Returns the series that a selector selects.
    pub fn select(&self, selector: &Selector) -> Vec<Sample> {
        let is_meant = |(labels, _): &&Sample| {
            selector.matchers.iter().all(|(label, operator, value)| {
                let found = labels.get(label).map_or("", String::as_str);
                // The expressions use only alternatives (`a|b`), and one pattern that begins with `.+`.
                let is_in = || match value.strip_prefix(".+") {
                    Some(end) => found.ends_with(&end.replace("[.]", ".")),
                    None => value.split('|').any(|value| value == found),
                };
                match operator.as_str() {
                    "=" => found == value,
                    "!=" => found != value,
                    "=~" => is_in(),
                    _ => !is_in(),
                }
            })
        };
        self.series.get(&selector.name).into_iter().flatten().filter(is_meant).cloned().collect()
    }
}

fn read_labels(mut text: &str) -> Labels {
    let mut labels = Labels::new();
    while let Some((name, rest)) = text.split_once("=\"") {
        let (value, rest) = rest.split_once('"').unwrap();
        labels.insert(name.to_owned(), value.to_owned());
        text = rest.trim_start_matches(',');
    }
    labels
}

// === impl History ===

impl History {
    fn at(&self, time: f64) -> Option<&Scrape> {
        self.0.iter().rev().find(|scrape| scrape.time <= time)
    }
}

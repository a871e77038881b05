//! The HTML page that `quantize --report` writes: one file, no scripts, light or dark as the reader's system is.

use maud::{Markup, html};

use crate::convert::quantize::{Summary, TensorResult};
use crate::html::{self, Foreign};
use crate::units::{human_bytes, shape_text};

/// Facts above the picture.
#[derive(Clone, Debug)]
pub struct Title {
    /// The input.
    pub input: String,
    /// The output.
    pub output: String,
    /// Format and its options, in words.
    pub format: String,
    /// Where it ran.
    pub device: String,
}

const STYLE: &str = "
:root { --before: #c9d2da; --after: #2f6fde; --error: #c2410c; }
@media (prefers-color-scheme: dark) { :root { --before: #47525c; --after: #6ea0ff; --error: #fb923c; } }
body { max-width: 64rem; }
svg { display: block; width: 100%; height: auto; font: 12px system-ui, sans-serif; }
svg text { fill: var(--ink); } svg .dim { fill: var(--dim); }
svg .grid { stroke: var(--line); } svg .before { fill: var(--before); } svg .after { fill: var(--after); }
svg .stem { stroke: var(--error); stroke-opacity: .45; stroke-width: 2; } svg .dot { fill: var(--error); }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: .85rem; width: 100%; }
th, td { text-align: right; padding: .2rem .6rem; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th { color: var(--dim); font-weight: 500; }
";

/// The page as text.
pub fn html(title: &Title, summary: &Summary) -> String {
    let quantized: Vec<_> = summary.quantized().map(|(tensor, _)| tensor).collect();
    let (before, after) = summary.bytes();
    let error = summary.error();
    let facts = [
        ("Format", title.format.clone()),
        ("Device", title.device.clone()),
        ("Quantized", format!("{} of {} tensors", quantized.len(), summary.tensors.len())),
        ("Size", format!("{} to {} ({:.2}x)", human_bytes(before), human_bytes(after), ratio(before, after))),
        ("Relative error", format!("{:.4}", error.relative())),
    ];
    let body = html! {
        h1 { "Quantization report" }
        p.files { (Foreign(&title.input)) }
        p.files { "\u{2192} " (Foreign(&title.output)) }
        dl {
            @for (name, value) in &facts {
                div { dt { (name) } dd { (Foreign(value)) } }
            }
        }
        h2 { "Error and size of every quantized tensor" }
        (picture(&quantized))
        h2 { "Numbers" }
        div.scroll { (table(&quantized)) }
    };
    html::page(&format!("Quantization of {}", title.input), STYLE, &body)
}

fn ratio(before: u64, after: u64) -> f64 {
    if after == 0 { 1.0 } else { before as f64 / after as f64 }
}

const WIDTH: f64 = 960.0;
const ROW: f64 = 22.0;
const TOP: f64 = 44.0;
const NAME: f64 = 330.0;
const GAP: f64 = 40.0;
const PANEL: f64 = 240.0;
const SIZE_PANEL: f64 = 170.0;

/// One row per tensor: its relative error as a dot on a common scale, its size before and after as bars.
fn picture(tensors: &[&TensorResult]) -> Markup {
    let height = TOP + ROW * tensors.len() as f64 + 12.0;
    let most_error = tensors.iter().filter_map(|t| t.error).map(|e| e.relative()).fold(0.0, f64::max);
    let error = Panel { left: NAME + GAP, width: PANEL, axis: Axis::new(most_error) };
    let most_bytes = tensors.iter().map(|t| t.bytes_in.max(t.bytes_out)).max().unwrap_or(0);
    let size =
        Panel { left: error.left + PANEL + GAP, width: SIZE_PANEL, axis: Axis::new(most_bytes as f64) };
    html! {
        svg viewBox={ "0 0 " (WIDTH) " " (height) } role="img"
            aria-label="Relative error and size of every quantized tensor" {
            text x=(error.left) y="14" { "relative error" }
            rect.before x=(size.left) y="5" width="10" height="9" {}
            text x=(size.left + 15.0) y="14" { "size before" }
            rect.after x=(size.left + 95.0) y="5" width="10" height="9" {}
            text x=(size.left + 110.0) y="14" { "after" }
            "\n"
            (error.grid(height, short_number))
            (size.grid(height, |bytes| human_bytes(bytes as u64)))
            @for (row, tensor) in tensors.iter().enumerate() { (tensor_row(row, tensor, error, size)) }
        }
    }
}

/// The marks of one tensor.
fn tensor_row(row: usize, tensor: &TensorResult, error: Panel, size: Panel) -> Markup {
    let Some(found) = tensor.error else { return html! {} };
    let middle = TOP + ROW * (row as f64 + 0.5);
    let end = tenth(error.at(found.relative()));
    let (before, after) = (human_bytes(tensor.bytes_in), human_bytes(tensor.bytes_out));
    html! {
        g {
            title {
                (Foreign(&tensor.name)) ": relative error " (format_args!("{:.5}", found.relative())) ", "
                (before) " to " (after)
            }
            text x=(NAME) y=(tenth(middle + 4.0)) text-anchor="end" { (Foreign(&shortened(&tensor.name, 46))) }
            line.stem x1=(error.left) x2=(end) y1=(tenth(middle)) y2=(tenth(middle)) {}
            circle.dot cx=(end) cy=(tenth(middle)) r="4" {}
            rect.before x=(size.left) y=(tenth(middle - 7.0)) width=(tenth(size.reach(tensor.bytes_in as f64))) height="6" {}
            rect.after x=(size.left) y=(tenth(middle + 1.0)) width=(tenth(size.reach(tensor.bytes_out as f64))) height="6" {}
            text.dim x=(WIDTH) y=(tenth(middle + 4.0)) text-anchor="end" {
                (format_args!("{:.2}x", ratio(tensor.bytes_in, tensor.bytes_out)))
            }
        }
        "\n"
    }
}

/// A coordinate.
fn tenth(value: f64) -> String {
    format!("{value:.1}")
}

/// A part of the picture with an axis of its own.
#[derive(Clone, Copy)]
struct Panel {
    left: f64,
    width: f64,
    axis: Axis,
}

impl Panel {
    /// How far a value is from the left.
    fn reach(self, value: f64) -> f64 {
        self.width * self.axis.fraction(value)
    }

    fn at(self, value: f64) -> f64 {
        self.left + self.reach(value)
    }

    /// A line and a label for each step of the axis.
    fn grid(self, height: f64, label: impl Fn(f64) -> String) -> Markup {
        html! {
            @for step in 0..=self.axis.steps {
                @let x = tenth(self.left + self.width * f64::from(step) / f64::from(self.axis.steps));
                line.grid x1=(x) x2=(x) y1=(TOP) y2=(tenth(height - 8.0)) {}
                text.dim x=(x) y=(tenth(TOP - 8.0)) text-anchor="middle" { (label(self.axis.step * f64::from(step))) }
                "\n"
            }
        }
    }
}

/// A scale from 0 whose steps are round numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Axis {
    step: f64,
    steps: u32,
}

impl Axis {
    fn new(most: f64) -> Self {
        if most <= 0.0 || !most.is_finite() {
            return Self { step: 1.0, steps: 1 };
        }
        let rough = most / 4.0;
        let power = 10f64.powf(rough.log10().floor());
        let step =
            [1.0, 2.0, 5.0, 10.0].into_iter().map(|n| n * power).find(|step| *step >= rough).unwrap_or(rough);
        Self { step, steps: ((most / step).ceil() as u32).max(1) }
    }

    fn fraction(self, value: f64) -> f64 {
        (value / (self.step * f64::from(self.steps))).clamp(0.0, 1.0)
    }
}

fn short_number(value: f64) -> String {
    let text = format!("{value:.4}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "0" && value != 0.0 { format!("{value:.0e}") } else { text.to_owned() }
}

/// The end of a long name says more than its start.
fn shortened(name: &str, limit: usize) -> String {
    let length = name.chars().count();
    if length <= limit {
        return name.to_owned();
    }
    let tail: String = name.chars().skip(length - (limit - 1)).collect();
    format!("\u{2026}{tail}")
}

fn table(tensors: &[&TensorResult]) -> Markup {
    let heads = ["Tensor", "Shape", "Type", "Before", "After", "Relative error", "Largest error"];
    html! {
        table {
            tr { @for head in heads { th { (head) } } }
            "\n"
            @for tensor in tensors {
                @if let Some(error) = tensor.error {
                    tr {
                        td { (Foreign(&tensor.name)) }
                        td { (shape_text(&tensor.shape)) }
                        td { (tensor.dtype.name()) }
                        td { (human_bytes(tensor.bytes_in)) }
                        td { (human_bytes(tensor.bytes_out)) }
                        td { (format_args!("{:.5}", error.relative())) }
                        td { (format_args!("{:.3e}", error.largest())) }
                    }
                    "\n"
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use warpwright_ops::quantize::{NibbleOrder, Scheme};
    use warpwright_ptx::DType;

    use super::*;
    use crate::checkpoint::StoredType;
    use crate::convert::kernels::{Groups, Method};
    use crate::convert::measure::ErrorStats;

    fn summary(name: &str) -> Summary {
        let mut error = ErrorStats::default();
        let method = Method { scheme: Scheme::Int4Symmetric, group_size: 2, order: NibbleOrder::LowFirst };
        let groups = Groups { codes: &[0xfe], scales: &[0.5], zero_points: &[] };
        error.add(&crate::checkpoint::floats::f32_bytes(&[3.0, 4.0]), DType::F32, groups, method);
        let tensor = TensorResult {
            name: name.to_owned(),
            shape: vec![1, 2],
            dtype: StoredType::F32,
            bytes_in: 8_000,
            bytes_out: 1_250,
            error: Some(error),
            mismatches: None,
        };
        let copied = TensorResult { name: "bias".to_owned(), error: None, ..tensor.clone() };
        Summary { tensors: vec![tensor, copied], notes: vec![] }
    }

    fn page(name: &str) -> String {
        let title = Title {
            input: "in".to_owned(),
            output: "out".to_owned(),
            format: "bnb-nf4".to_owned(),
            device: "emulator".to_owned(),
        };
        html(&title, &summary(name))
    }

    #[test]
    fn the_page_has_a_mark_per_quantized_tensor_and_the_numbers() {
        let page = page("layer.weight");
        assert_eq!(page.matches("<circle").count(), 1);
        // Two bars and the two squares of the legend.
        assert_eq!(page.matches("<rect").count(), 4);
        assert!(page.contains("1 of 2 tensors"));
        assert!(page.contains("<td>8.0 kB</td><td>1.2 kB</td><td>0.10000</td><td>5.000e-1</td>"), "{page}");
        assert!(page.contains("prefers-color-scheme: dark"));
        assert!(!page.contains("<script") && !page.contains("http"));
    }

    #[test]
    fn a_hostile_name_stays_text() {
        let page = page("<script>alert(1)</script>\"'\u{1b}");
        assert!(!page.contains("<script"));
        assert!(page.contains("&lt;script&gt;alert(1)&lt;/script&gt;&quot;&#39;"));
    }

    #[test]
    fn axes_end_at_or_after_the_largest_value() {
        for most in [1e-9, 0.0731, 0.1, 1.0, 46_900_000.0] {
            let axis = Axis::new(most);
            assert!((1..=8).contains(&axis.steps), "{axis:?}");
            assert!(axis.step * f64::from(axis.steps) >= most * 0.999_999);
        }
        assert_eq!(Axis::new(0.0), Axis { step: 1.0, steps: 1 });
        assert_eq!(Axis::new(0.09), Axis { step: 0.05, steps: 2 });
    }

    #[test]
    fn long_names_keep_their_end() {
        assert_eq!(shortened("abcdef", 6), "abcdef");
        assert_eq!(shortened("abcdefg", 6), "\u{2026}cdefg");
        assert_eq!(short_number(0.05), "0.05");
        assert_eq!(short_number(0.0), "0");
    }
}

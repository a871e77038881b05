//! The HTML page that `quantize --report` writes: one file, no scripts, light or dark as the reader's system is.

use std::fmt::Write;

use crate::convert::quantize::{Summary, TensorResult};
use crate::html::{escape, head};
use crate::style::{human_bytes, shape_text};

/// What the page says above the picture.
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
    let mut page = head(&format!("Quantization of {}", title.input), STYLE);
    let mut put = |text: std::fmt::Arguments<'_>| {
        // Writing to a String cannot fail.
        let _ = page.write_fmt(text);
    };
    put(format_args!("<h1>Quantization report</h1>\n<p class=\"files\">{}</p>\n", escape(&title.input)));
    put(format_args!("<p class=\"files\">&rarr; {}</p>\n<dl>\n", escape(&title.output)));
    for (name, value) in facts {
        put(format_args!("<div><dt>{name}</dt><dd>{}</dd></div>\n", escape(&value)));
    }
    put(format_args!("</dl>\n<h2>Error and size of every quantized tensor</h2>\n{}", picture(&quantized)));
    put(format_args!(
        "<h2>Numbers</h2>\n<div class=\"scroll\">\n{}</div>\n</body>\n</html>\n",
        table(&quantized)
    ));
    page
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
fn picture(tensors: &[&TensorResult]) -> String {
    let height = TOP + ROW * tensors.len() as f64 + 12.0;
    let most_error = tensors.iter().filter_map(|t| t.error).map(|e| e.relative()).fold(0.0, f64::max);
    let error_axis = Axis::new(most_error);
    let most_bytes = tensors.iter().map(|t| t.bytes_in.max(t.bytes_out)).max().unwrap_or(0);
    let size_axis = Axis::new(most_bytes as f64);
    let (error_left, size_left) = (NAME + GAP, NAME + GAP + PANEL + GAP);
    let mut svg = format!(
        "<svg viewBox=\"0 0 {WIDTH} {height}\" role=\"img\" aria-label=\"Relative error and size of every quantized tensor\">\n\
         <text x=\"{error_left}\" y=\"14\">relative error</text>\n\
         <rect class=\"before\" x=\"{size_left}\" y=\"5\" width=\"10\" height=\"9\"/>\
         <text x=\"{:.1}\" y=\"14\">size before</text>\
         <rect class=\"after\" x=\"{:.1}\" y=\"5\" width=\"10\" height=\"9\"/>\
         <text x=\"{:.1}\" y=\"14\">after</text>\n",
        size_left + 15.0,
        size_left + 95.0,
        size_left + 110.0
    );
    for (left, panel, axis, is_error) in
        [(error_left, PANEL, error_axis, true), (size_left, SIZE_PANEL, size_axis, false)]
    {
        for step in 0..=axis.steps {
            let x = left + panel * f64::from(step) / f64::from(axis.steps);
            let value = axis.step * f64::from(step);
            let label = if is_error { short_number(value) } else { human_bytes(value as u64) };
            let _ = writeln!(
                svg,
                "<line class=\"grid\" x1=\"{x:.1}\" x2=\"{x:.1}\" y1=\"{TOP}\" y2=\"{:.1}\"/>\
                 <text class=\"dim\" x=\"{x:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                height - 8.0,
                TOP - 8.0
            );
        }
    }
    for (row, tensor) in tensors.iter().enumerate() {
        let Some(error) = tensor.error else { continue };
        let middle = TOP + ROW * (row as f64 + 0.5);
        let error_end = error_left + PANEL * error_axis.fraction(error.relative());
        let width = |bytes: u64| SIZE_PANEL * size_axis.fraction(bytes as f64);
        let _ = writeln!(
            svg,
            "<g><title>{}: relative error {:.5}, {} to {}</title>\
             <text x=\"{NAME}\" y=\"{:.1}\" text-anchor=\"end\">{}</text>\
             <line class=\"stem\" x1=\"{error_left}\" x2=\"{error_end:.1}\" y1=\"{middle:.1}\" y2=\"{middle:.1}\"/>\
             <circle class=\"dot\" cx=\"{error_end:.1}\" cy=\"{middle:.1}\" r=\"4\"/>\
             <rect class=\"before\" x=\"{size_left}\" y=\"{:.1}\" width=\"{:.1}\" height=\"6\"/>\
             <rect class=\"after\" x=\"{size_left}\" y=\"{:.1}\" width=\"{:.1}\" height=\"6\"/>\
             <text class=\"dim\" x=\"{WIDTH}\" y=\"{:.1}\" text-anchor=\"end\">{:.2}x</text></g>",
            escape(&tensor.name),
            error.relative(),
            human_bytes(tensor.bytes_in),
            human_bytes(tensor.bytes_out),
            middle + 4.0,
            escape(&shortened(&tensor.name, 46)),
            middle - 7.0,
            width(tensor.bytes_in),
            middle + 1.0,
            width(tensor.bytes_out),
            middle + 4.0,
            ratio(tensor.bytes_in, tensor.bytes_out),
        );
    }
    svg.push_str("</svg>\n");
    svg
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

fn table(tensors: &[&TensorResult]) -> String {
    let mut rows = String::from(
        "<table>\n<tr><th>Tensor</th><th>Shape</th><th>Type</th><th>Before</th><th>After</th><th>Relative error</th>\
         <th>Largest error</th></tr>\n",
    );
    for tensor in tensors {
        let Some(error) = tensor.error else { continue };
        let _ = writeln!(
            rows,
            "<tr><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td><td>{:.5}</td><td>{:.3e}</td></tr>",
            escape(&tensor.name),
            escape(&shape_text(&tensor.shape)),
            tensor.dtype,
            human_bytes(tensor.bytes_in),
            human_bytes(tensor.bytes_out),
            error.relative(),
            error.largest(),
        );
    }
    rows.push_str("</table>\n");
    rows
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
        error.add(&crate::convert::floats::f32_bytes(&[3.0, 4.0]), DType::F32, groups, method);
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

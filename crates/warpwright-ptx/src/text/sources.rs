//! The source that a PTX text was compiled from, as its `.file` and `.loc` directives tell.

/// A line of the source that a compiler translated.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SourceLine {
    /// File as the compiler named it.
    pub file: String,
    /// Line, from 1.
    pub line: u32,
    /// Column, from 1; 0 if not known.
    pub column: u32,
}

impl std::fmt::Display for SourceLine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}:{}", self.file, self.line)?;
        if self.column == 0 { Ok(()) } else { write!(f, ":{}", self.column) }
    }
}

/// Which source line each line of a PTX text came from.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    files: Vec<(u32, String)>,
    /// From this line of the text on, until the next mark: file, line and column. File 0 is none.
    marks: Vec<(u32, [u32; 3])>,
}

impl Sources {
    /// Collects the directives of a text. What does not look like one is passed over: the parser complains about it.
    pub fn of(text: &str) -> Self {
        let mut sources = Self::default();
        for (number, line) in (1..).zip(text.lines()) {
            let line = line.trim_start();
            if let Some(rest) = line.strip_prefix(".loc") {
                let mut words = rest.split(|c: char| !c.is_ascii_digit()).filter(|w| !w.is_empty());
                let mut next = || words.next().and_then(|w| w.parse::<u32>().ok());
                if let (Some(file), Some(line), Some(column)) = (next(), next(), next()) {
                    sources.marks.push((number, [file, line, column]));
                }
            } else if let Some(rest) = line.strip_prefix(".file") {
                let mut parts = rest.splitn(3, '"');
                let index = parts.next().and_then(|index| index.trim().parse::<u32>().ok());
                if let (Some(index), Some(name)) = (index, parts.next()) {
                    sources.files.push((index, name.to_owned()));
                }
            } else if line.starts_with('.')
                && line.split([' ', '\t', '(']).take(3).any(|w| w == ".entry" || w == ".func")
            {
                sources.marks.push((number, [0; 3]));
            }
        }
        sources
    }

    /// The source of what stands on a line of the text, from 1. Inlined code belongs to the innermost function.
    pub fn at(&self, line: u32) -> Option<SourceLine> {
        let after = self.marks.partition_point(|(mark, _)| *mark <= line);
        let (_, [file, line, column]) = *self.marks.get(after.checked_sub(1)?)?;
        let (_, name) = self.files.iter().find(|(index, _)| *index == file)?;
        (line != 0).then(|| SourceLine { file: name.clone(), line, column })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_belongs_to_the_last_mark_of_its_function() {
        let text = "\
.visible .entry a()
{
    .loc 1 7 5
    add.u32 %r0, %r0, 1;
    add.u32 %r0, %r0, 2;
    .loc 2 40 3, function_name $L__info_string0, inlined_at 1 8 1
    ret;
}
.entry b()
{
    ret;
    .loc 9 1 1
    ret;
    .loc 1 0 0
    ret;
}
    .file 1 \"/src/k.cu\"
    .file 2 \"/cuda/include/math.h\", 1700000000, 12
";
        let sources = Sources::of(text);
        let at = |line| sources.at(line).map(|s| s.to_string());
        assert_eq!(at(1), None);
        assert_eq!(at(4).as_deref(), Some("/src/k.cu:7:5"));
        assert_eq!(at(5), at(4));
        assert_eq!(at(7).as_deref(), Some("/cuda/include/math.h:40:3"));
        // Another function, a file that is not declared, and code that belongs to no line.
        assert_eq!((at(11), at(13), at(15)), (None, None, None));
        assert_eq!(Sources::of(".loc 1\n.file x\n.loc a b c").at(3), None);
    }
}

"""What writes the files of other programs needs these programs: it is no test."""

collect_ignore = ["writers"]

"""Logs of evaluations that other programs wrote, one module per format.

Takes their files; gives answers of one kind (`answers.Answer`), and of these the table that `read_log` takes."""

"""What others do with a log of answers, each written from its paper, to stand beside rcjax's default.

A peer takes what the models answered to the queries to tune on and to those to judge by (`methods.Columns`), and gives
a row of figures for each of its policies: the error and the bill that the peer itself expects on the first, by which
it chooses, and those that come on the second. `budgets.by_labels` then finds what a budget gets.
"""

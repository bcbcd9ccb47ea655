"""From questions to a log: the run that asks every model, and the graders that tell right from wrong.

Takes a file of questions (`questions`) and one of models (`rcjax.serving.models_file`); gives a log that
`rcjax.read_log` reads. `run` asks, `respondent` keeps to the budget, `answer_file` keeps what was paid for,
`graders` judge.
"""

"""Collect a log from questions: the run that asks every model, and the graders that label answers.

Takes a file of questions (`questions`) and a file of models (`rcjax.serving.models_file`); gives a log for
`rcjax.read_log`. `run` sends the questions, `respondent` keeps to the budget, `answer_file` stores every paid answer,
`grading` labels them, by `graders` of the user or by comparison with the `right_answers`.
"""

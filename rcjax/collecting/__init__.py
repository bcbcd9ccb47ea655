"""Collect a log from questions: the run that asks every model, and the graders that label answers.

Input: a file of questions (`questions`) and a file of models (`rcjax.serving.models_file`). Output: a log for
`rcjax.read_log`. `run` sends the questions, `respondent` keeps to the budget, `answer_file` stores every paid answer,
and `grading` labels the answers, by `user_graders` or by comparison with the `right_answers`.
"""

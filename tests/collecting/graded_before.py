"""150 further answers, graded by hand before the code of the graders was looked at, by the rule below.

The rule:

1. What counts is the answer that the reply ends up giving. What is worked out on the way, a check afterwards, a note,
   a source ("[1]"), or how sure the writer is, is not the answer. Where an answer is marked (a box, a tag, "####", a
   field "answer" of JSON, "final answer:"), the mark counts.
2. A denied answer ("not 42") is none. Where the reply gives another one beside it, that one counts.
3. Two different answers at once ("41 or 42", "A and B", a range) are wrong, also where one of them is right. One
   answer that is called probable, or about so much, counts as it stands.
4. No answer, a refusal, a question back: wrong.
5. Numbers: units, currencies and how digits are grouped do not count; words of size (k, million, bn) do. A percentage
   is right as such, as its fraction and without its sign. A factor, a variable or a sign that changes the value does
   (3π, 3x, 10!, −3). More digits than the reference are right where they round to it and it has three digits that
   count, or more; fewer digits than a decimal reference are wrong. A fraction that never ends may be given to three
   digits.
6. `exact`: the answer is the reference but for case, marks, articles and spaces around; a name that goes on to say
   where ("Paris, France") is right. `contains`: the reference stands in the reply as a word or number of its own, and
   is not denied there. `choice`: by letter or by words.
7. A judge's verdict is one word alone on its last line, or JSON {"correct": ...}; all else is no verdict (None).

Each is (right answers with " || " between them, the reply, whether it is right). CHOICES are asked with the letters A
to D, which stand for PLANETS of graded_by_hand; VERDICTS are what a judge said, and what of it.
"""

NUMBERS = (
    ("17", "答案是17。", True),
    ("17", "答案是18。", False),
    ("17", "所以总共有17个苹果", True),
    ("17", "答えは17です。", True),
    ("17", "정답은 17입니다.", True),
    ("17", "총 17개", True),
    ("17", "答案：17", True),
    ("2500", "一共2,500元。", True),
    ("17", "Die Antwort ist 17.", True),
    ("1250.5", "Das Ergebnis ist 1.250,50 €.", True),
    ("17", "La réponse est 17.", True),
    ("17", "La respuesta es 17 manzanas.", True),
    ("17", "Ответ: 17", True),
    ("17", "The answer isn't 17.", False),
    ("17", "It is not 17.", False),
    ("17", "It can't be 17, so it must be 18.", False),
    ("17", "It can't be 18, so it must be 17.", True),
    ("17", "It's 17, not 18.", True),
    ("17", "It's 18, not 17.", False),
    ("17", "Not 18 but 17.", True),
    ("17", "The answer is 17 rather than 18.", True),
    ("17", "17 instead of 18", True),
    ("17", "16 or 17", False),
    ("17", "Either 17 or 18, I can't tell.", False),
    ("17", "It's somewhere between 17 and 20.", False),
    ("17", "15–17", False),
    ("17", "Probably 17.", True),
    ("17", "I think it's about 17, but I am not sure.", True),
    ("17", "The answer is 17. I am 90% confident.", True),
    ("17", "17 (confidence: 0.8)", True),
    ("17", "Answer: 17\nConfidence: 95", True),
    ("17", '{"answer": 17, "confidence": 0.9}', True),
    ("17", '{"reasoning": "8 + 9 = 17", "answer": "17"}', True),
    ("17", '{"confidence": 17, "answer": 12}', False),
    ("17", '```json\n{"answer": 17, "unit": "km2", "steps": 4}\n```', True),
    ("17", "The answer is 17 [2].", True),
    ("17", "17[3]", True),
    ("2", "17 [2]", False),
    ("17", "17 (see step 3)", True),
    ("17", "<think>8 + 8 = 16? No, 8 + 9.</think>\n\n17", True),
    ("17", "<answer>17</answer>", True),
    ("17", "<answer>18</answer> (not 17)", False),
    ("17", "**17** is the answer. There were 8 in the first box and 9 in the second.", True),
    ("17", "I don't know.", False),
    ("17", "I'm sorry, I can't solve problem 17.", False),
    ("-17", "minus 17", True),
    ("-17", "negative seventeen", True),
    ("17", "minus 17", False),
    ("-17", "The balance is -$17.", True),
    ("-17", "−17 °C", True),
    ("17", "10 - 17", False),
    ("17", "17π", False),
    ("17", r"\boxed{17\pi}", False),
    ("17", r"\boxed{17x}", False),
    ("17", "17!", False),
    ("17", "17√2", False),
    ("17", r"\boxed{\sqrt{17}}", False),
    ("17", "17²", False),
    ("289", "17^2 = 289", True),
    ("17", "17% of 100 is 17.", True),
    ("0.17", "17%", True),
    ("17000", "17k", True),
    ("17000", "17 thousand", True),
    ("17", "17 thousand", False),
    ("1700000", "$1.7M", True),
    ("1700000000", "$1.7bn", True),
    ("1700000000", "1.7 billion people", True),
    ("1700000", "17 lakh", True),
    ("1700000", "17,00,000", True),
    ("300", "three hundred", True),
    ("121", "one hundred and twenty-one", True),
    ("2000", "two thousand", True),
    ("17", "Seventeen.", True),
    ("17", "17.0", True),
    ("17", "17.4", False),
    ("17", "16.9999", False),
    ("0.7", "0.68", False),
    ("0.375", "3/8", True),
    ("1/3", "0.333", True),
    ("1/3", "0.3", False),
    ("12.57", "12.566", True),
    ("12.57", "12.6", False),
    ("17", "In 2023, there were 17 of them.", True),
    ("1984", "17 June 1984", True),
    ("17", "x = 17 or x = -17", False),
)

EXACT = (
    ("Lima", '{"answer": "Lima"}', True),
    ("Lima", '{"answer": "Quito", "other": "Lima"}', False),
    ("Lima", "<answer>Lima</answer>", True),
    ("Lima", "<answer>\nLima\n</answer>", True),
    ("Lima", "<think>Quito? No.</think>Lima", True),
    ("Lima", "The answer is not Lima.", False),
    ("Lima", "The answer is Lima [1].", True),
    ("Lima", "Lima or Quito", False),
    ("Lima", "答案是Lima。", True),
    ("Lima", "Final answer: **Lima**", True),
    ("Lima", "It's Lima.", True),
    ("Lima", "Lima, Peru", True),
    ("Lima", "Answer: Lima\nConfidence: 90%", True),
    ("Lima", "`Lima`", True),
    ("Lima", "Quito. The answer is not Lima.", False),
    ("42", "4.2", False),
    ("利马", "利马。", True),
    ("no", "No, that is false.", True),
    ("Ottawa || Ottawa, Ontario", "Ottawa, Ontario", True),
    ("New York", "York", False),
)

CONTAINS = (
    ("7", "There are 7 of them.", True),
    ("7", "There are 7.", True),
    ("7", "It costs 3.7.", False),
    ("7", "It costs 7.3.", False),
    ("7", "It is -7 degrees.", False),
    ("7", "1,007 people", False),
    ("3.7", "It costs $3.7 in all", True),
    ("Lima", "Lima is the capital.", True),
    ("Lima", "The climate is mild.", False),
    ("Lima", "It isn't Lima.", False),
    ("Lima", "The capital is Quito, not Lima.", False),
    ("Lima", "首都是Lima。", True),
    ("7", "答案是7。", True),
    ("not guilty", "The jury found him not guilty.", True),
    ("Lima", "Not only that: Lima is also the largest city.", True),
)

CHOICES = (
    ("B", "答案是B。", True),
    ("B", "答案：B", True),
    ("B", "정답은 B입니다.", True),
    ("B", "正解はBです。", True),
    ("B", '{"answer": "B"}', True),
    ("B", '{"answer": "A", "second": "B"}', False),
    ("B", "Not A. B.", True),
    ("B", "It's B, not A.", True),
    ("B", "It's A, not B.", False),
    ("B", "The answer isn't B.", False),
    ("B", "Either B or C.", False),
    ("B", "Answer: B [1]", True),
    ("B", "<think>A? No.</think>\nB", True),
    ("B", "B\nConfidence: 80%", True),
    ("B", "The answer is B, Jupiter, rather than D.", True),
    ("B", "Die Antwort ist B.", True),
    ("B", "La réponse est B.", True),
    ("B", "Jupiter, not Venus", True),
    ("B", "Not Jupiter", False),
    ("B", "I'd go with B", True),
)

VERDICTS = (
    ("The replies say the same.\nyes", True),
    ("They differ in the year.\n\nno", False),
    ('{"correct": true}', True),
    ('```json\n{"correct": false}\n```', False),
    ("The answer is right", None),
    ("no, wait: yes", None),
    ("It is not a yes", None),
    ("yes/no", None),
    ("I cannot tell.", None),
    ("yes\nor no, depending on the unit", None),
)

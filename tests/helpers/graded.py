"""Replies, right answers, and the verdict that a person gives by the rule below; hard ones among them.

A line has right answers (`||` between them), an arrow, and replies (`¦` between them), the wrong ones behind a cross; ⏎
stands for the end of a line. CHOICES are asked with the choices A to D, which say PLANETS. Half of these were graded
before the code of the graders was looked at. The rule:

1. What counts is the answer that the reply ends up giving. What is worked out on the way, a check afterwards, a note,
   a source ("[1]"), or how sure the writer is, is not the answer. A marked answer counts (a box, a tag, "####").
2. A denied answer ("not 42") is none. Where the reply gives another one beside it, that one counts.
3. Two different answers at once ("41 or 42", a range) are wrong. One that is called probable counts as it stands.
4. No answer, a refusal, a question back: wrong.
5. Numbers: units, currencies and how digits are grouped do not count; words of size (k, million) do. A percentage is
   right as such, as its fraction and without its sign. A factor, a variable or a sign that changes the value does (3π).
   More digits than the reference are right where they round to it and it has three that count, or more.
6. `exact`: the reference but for case, marks, articles and spaces around; a name may go on to say where ("Paris,
   France"). `contains`: it stands in the reply as a word or number of its own, and is not denied. `choice`: by letter
   or by words.
7. A judge's verdict is one word alone on its last line, or JSON {"correct": ...}; all else is no verdict (?).
"""

PLANETS = {"A": "Mars", "B": "Jupiter", "C": "Venus", "D": "The Sun"}

NUMBERS = r"""
42 ← 42 ¦ 42. ¦ The answer is 42. ¦ **42** ¦ #### 42 ¦ She has 3 * 14 = 42 apples.
42 ← She has 3 * 14 = 42 apples, and 3 boxes. ¦ $42 ¦ 42 apples ¦ forty-two ¦ ✗43
42 ← ✗There are 42 at first, but 2 are eaten, so 40. ¦ ✗I cannot determine this. ¦ ✗ ¦ ✗The answer is not 42 but 41.
42 ← ✗421 ¦ ✗4.2 ¦ ✗-42 ¦ 答案是42。 ¦ 정답은42입니다 ¦ ✗The answer is not 42 ¦ ✗either 41 or 42
42 ← {"answer": 42, "confidence": 95} ¦ 42 [1] ¦ 42. I am 95 % sure. ¦ {"answer": 42, "confidence": 0.9}
42 ← The answer is 42! ¦ ✗not 41 or 42 ¦ คำตอบคือ42
-42 ← -42 ¦ −42 ¦ The change is −42 degrees. ¦ ✗42
1200 ← 1,200 ¦ $1,200.00 ¦ 1 200 ¦ 1 200 ¦ 1'200 ¦ 1.2 thousand ¦ 1.2k ¦ 1.2 × 10^3 ¦ 1.2e3 ¦ 1.2 \times 10^{3}
1200 ← 1.2 × 10³ ¦ ✗12,00 ¦ 1.200,00
1,200 ← 1200
$1,200 ← 1200 dollars
1200000 ← 1.2 million ¦ 1,200,000 ¦ 1.2 million dollars ¦ ✗1.2 billion
0.5 ← 1/2 ¦ ½ ¦ \frac{1}{2} ¦ \boxed{\frac{1}{2}} ¦ \boxed{0.5} ¦ 50% ¦ 50 percent ¦ 0,5 ¦ .5 ¦ ✗5 ¦ ✗0.46
1/2 ← 0.5 ¦ 2/4 ¦ ✗1/3
\frac{3}{4} ← 3/4 ¦ 0.75 ¦ So the result is $\dfrac{3}{4}$. ¦ \boxed{\frac34}
1.5 ← 1 1/2 ¦ 1½ ¦ 3/2 ¦ one and a half
45% ← 45% ¦ 45 ¦ 0.45 ¦ 45\% ¦ ✗54%
45 ← 45 %
12 km ← 12 km ¦ 12 kilometres
12 ← 12 cm^2 ¦ 12 cm² ¦ 12 m2 ¦ The volume of CO2 is 12 litres. ¦ It takes 12 minutes. ¦ x = 12 ¦ x=12 ¦ \(x = 12\)
12 ← $x = 12$ ¦ \[ x = \boxed{12} \] ¦ \boxed{12\text{ cm}} ¦ \boxed{x = 12}
12 ← Step 1: 3 + 4 = 7. Step 2: 7 + 5 = 12. Final answer: 12 ¦ **Final answer:** 12 cookies in 3 bags
12 ← Answer: 12⏎⏎Let me check: 12 / 3 = 4. ¦ The answer is 12. (Since 3 times 4 is 12.) ¦ So the answer is 3 + 9 = 12.
12 ← #### 12⏎ ¦ 1. Add 5 and 7.⏎2. The sum is 12. ¦ There are 12 eggs in 1 dozen. ¦ ✗The total is 13.
12 ← ✗The answer is 13, not 12. ¦ ✗12 or 13 ¦ ✗between 10 and 12 ¦ twelve ¦ a dozen ¦ ✗It's 13, not 12
12 ← The answer is 12 = 3 + 9.
20 ← twenty ¦ The second glass costs 60% of $5, which is $3.⏎⏎The final answer is 20.
35 ← thirty five
100 ← one hundred
0 ← 0 ¦ zero ¦ none
3.14 ← 3.14159 ¦ ✗3.15 ¦ approximately 3.14 ¦ ≈ 3.14
3.14159 ← ✗3.14
2.50 ← 2.5
2.5 ← $2.50 ¦ €2,50 ¦ \boxed{\dfrac{5}{2}}
7 ← 10 - 3 = 7 ¦ 7 (10 - 3) ¦ The answer is seven. ¦ ７ ¦ Seven dwarfs, in 1812
100000 ← 1e5 ¦ 10^5
3 ← log_10(1000) = 3 ¦ The 3rd one ¦ It takes 2/2=1 bolt of white fiber. So the total amount is 2+1=3 bolts of fabric
3 ← ✗x = ±3 ¦ ✗3π ¦ ✗\boxed{3x} ¦ ✗3 pi ¦ ✗3*pi ¦ 3 pieces
2021 ← 2021 ¦ In March 2021. ¦ On 5 March 2021 ¦ 2,021
5 ← 5:00 ¦ She had 5 left over after giving away 3. ¦ After giving away 3, she had 5 left over.
8 ← 2^3 = 8 ¦ The answer is 8 since 2 to the power of 3 is 8. ¦ ✗8 is not the answer.
18 ← She makes 9 * 2 = $<<9*2=18>>18 every day at the market.⏎#### 18
18 ← Janet sells 16 - 3 - 4 = 9 eggs a day. She makes 9 * 2 = $18 every day.
18 ← Let's break it down:⏎1. 16 eggs per day⏎2. 3 eaten, 4 baked⏎3. 9 × $2 = $18⏎⏎**Answer: $18**
70000 ← The profit is 200,000 - 130,000 = $70,000
540 ← He runs 3*3=9 sprints, 9*60=540 meters a week.
64 ← He needs to pay $64 for the 16 glasses.
17 ← 答案是17。 ¦ ✗答案是18。 ¦ 所以总共有17个苹果 ¦ 答えは17です。
17 ← 정답은 17입니다. ¦ 총 17개 ¦ 答案：17 ¦ Die Antwort ist 17. ¦ La réponse est 17.
17 ← La respuesta es 17 manzanas. ¦ Ответ: 17 ¦ ✗The answer isn't 17. ¦ ✗It is not 17.
17 ← ✗It can't be 17, so it must be 18. ¦ It can't be 18, so it must be 17. ¦ It's 17, not 18. ¦ ✗It's 18, not 17.
17 ← Not 18 but 17. ¦ The answer is 17 rather than 18. ¦ 17 instead of 18 ¦ ✗16 or 17
17 ← ✗Either 17 or 18, I can't tell. ¦ ✗It's somewhere between 17 and 20. ¦ ✗15–17 ¦ Probably 17.
17 ← I think it's about 17, but I am not sure. ¦ The answer is 17. I am 90% confident. ¦ 17 (confidence: 0.8)
17 ← Answer: 17⏎Confidence: 95 ¦ {"answer": 17, "confidence": 0.9} ¦ {"reasoning": "8 + 9 = 17", "answer": "17"}
17 ← ✗{"confidence": 17, "answer": 12} ¦ ```json⏎{"answer": 17, "unit": "km2", "steps": 4}⏎``` ¦ The answer is 17 [2].
17 ← 17[3] ¦ 17 (see step 3) ¦ <think>8 + 8 = 16? No, 8 + 9.</think>⏎⏎17 ¦ <answer>17</answer>
17 ← ✗<answer>18</answer> (not 17) ¦ **17** is the answer. There were 8 in the first box and 9 in the second.
17 ← ✗I don't know. ¦ ✗I'm sorry, I can't solve problem 17. ¦ ✗minus 17 ¦ ✗10 - 17 ¦ ✗17π ¦ ✗\boxed{17\pi}
17 ← ✗\boxed{17x} ¦ ✗17! ¦ ✗17√2 ¦ ✗\boxed{\sqrt{17}} ¦ ✗17² ¦ 17% of 100 is 17. ¦ ✗17 thousand ¦ Seventeen. ¦ 17.0
17 ← ✗17.4 ¦ ✗16.9999 ¦ In 2023, there were 17 of them. ¦ ✗x = 17 or x = -17 ¦ Answer:⏎- 17 apples
2500 ← 一共2,500元。
1250.5 ← Das Ergebnis ist 1.250,50 €.
2 ← ✗17 [2] ¦ \boxed{\frac{4}{2}} ¦ ✗2π ¦ ✗3x + 2
-17 ← minus 17 ¦ negative seventeen ¦ The balance is -$17. ¦ −17 °C
289 ← 17^2 = 289
0.17 ← 17%
17000 ← 17k ¦ 17 thousand
1700000 ← $1.7M ¦ 17 lakh ¦ 17,00,000
1700000000 ← $1.7bn ¦ 1.7 billion people
300 ← three hundred
121 ← one hundred and twenty-one
2000 ← two thousand
0.7 ← ✗0.68
0.375 ← 3/8
1/3 ← 0.333 ¦ ✗0.3 ¦ 33.3%
12.57 ← 12.566 ¦ ✗12.6
1984 ← 17 June 1984
260 ← Carla needs 260 minutes (4 hours and 20 minutes).
366 ← So the total is 60 + 180 + 126 = 366 downloads.
694 ← The total bill is $694.00
13 ← Therefore, Jill is paid $13/hour.
75 ← 75% of them
1/6 ← The probability is 1/6 ≈ 0.1667.
0.1667 ← The probability is 1/6
25 ← Thus $x = \boxed{25}$, since $25^2 = 625$. ¦ $$x^2 = 625 \implies x = 25$$
-3 ← The solution is $x = -3$. ¦ ✗x = 3
10000 ← 10,000 miles ¦ ten thousand
15 ← The answer is fifteen (15). ¦ Sure! The answer would be: 15 ¦ 15 students. Let me know if you have any questions!
15 ← 15⏎⏎Explanation: 3 groups of 5. ¦ **15**⏎⏎Note: rounded to the nearest whole number.
15 ← The result is 15, as 30 / 2 = 15. ¦ Hmm, maybe 14? No, wait: 15. ¦ I get 14.9, so approximately 15. ¦ > 15
15 ← at least 15 ¦ 15+ ¦ (15) ¦ 15; ¦ The answer is:⏎⏎15 ¦ The answer is⏎$$15$$ ¦ {"final_answer": 15}
15 ← {"result": {"value": 15}} ¦ Answer = 15 ¦ A: 15 ¦ 15€ ¦ USD 15 ¦ Rs. 15 ¦ 15 % ¦ 15th ¦ ✗15 out of 20
15 ← 15 - that's the answer ¦ ✗15, 16 ¦ ✗No solution ¦ ✗The answer is unknown, though 15 is a popular guess.
14 ← ✗Hmm, maybe 14? No, wait: 15.
2.4 ← 2 2/5
0.001 ← 10^{-3} ¦ 1 × 10⁻³
6.02e23 ← 6.02 × 10^23
50 ← fifty percent
99 ← ninety-nine
1999 ← 1999
1000000 ← 1 mil ¦ a million
4 ← √16 = 4 ¦ \sqrt{16} ¦ ✗3 + 4 ¦ Raspberry Pi 4
6.28 ← 2π
10 ← ✗10!
95 ← ✗{"answer": 42, "confidence": 95}
-5 ← minus 5
3500000000 ← $3.5bn
3500000 ← 3.5M
200 ← two hundred
123456 ← 1,23,456
3π ← 3π ¦ 3pi
3628800 ← 10!
5:30 ← ✗6:30
35000 ← 3.5万
"""

EXACT = r"""
Paris ← Paris ¦ paris ¦ PARIS. ¦   Paris⏎ ¦ **Paris** ¦ "Paris" ¦ “Paris” ¦ The answer is Paris. ¦ Answer: Paris
Paris ← \boxed{\text{Paris}} ¦ Paris, France ¦ The capital of France is Paris. ¦ ✗London ¦ ✗Parisian ¦ ✗Not Paris
Paris ← ✗Paris or London ¦ ✗I don't know. ¦ ✗I'm sorry, but I can't answer that. ¦ ✗ ¦ paris, france
Paris ← The final answer is: Paris. ¦ ✗Not Paris, Lyon ¦ {"answer":"paris."} ¦ Paris (France) ¦ {"answer": "Paris"}
Paris ← <answer>Paris</answer>
Eiffel Tower ← the Eiffel Tower
The Beatles ← Beatles
an apple ← apple
Malmö ← Malmö ¦ Malmö
Straße ← strasse
ﬁnland ← Finland
O'Neill ← O’Neill
well-known ← well‑known
J. R. R. Tolkien || Tolkien ← Tolkien
J. R. R. Tolkien ← JRR Tolkien
United States || USA ← USA
United States ← the United  States
true ← True ¦ True. ¦ ✗Not true
yes ← Yes. ¦ Yes, it is.
no ← No ¦ ✗yes ¦ No, that is false.
x+1 ← x + 1
東京 ← 東京 ¦ 東京。
C++ ← C++
C# ← ✗C
.NET ← .NET
A ← a
The The ← The The
2 || two ← two
Lima ← {"answer": "Lima"} ¦ ✗{"answer": "Quito", "other": "Lima"} ¦ <answer>Lima</answer> ¦ <answer>⏎Lima⏎</answer>
Lima ← <think>Quito? No.</think>Lima ¦ ✗The answer is not Lima.
Lima ← The answer is Lima [1]. ¦ ✗Lima or Quito ¦ 答案是Lima。
Lima ← Final answer: **Lima** ¦ It's Lima. ¦ Lima, Peru ¦ Answer: Lima⏎Confidence: 90% ¦ `Lima`
Lima ← ✗Quito. The answer is not Lima.
42 ← ✗4.2
利马 ← 利马。
Ottawa || Ottawa, Ontario ← Ottawa, Ontario
New York ← ✗York
Barack Obama ← Barack Obama. ¦ ✗Obama
H2O ← H₂O
1 ← ✗1,200
B ← ✗B, C
"""

CONTAINS = r"""
Paris ← The capital of France is Paris. ¦ It's Paris, which lies on the Seine. ¦ PARIS
Paris ← ✗Parisian cafés are in London. ¦ ✗The capital is Lyon. ¦ ✗It is not Paris; it is Lyon. ¦ ✗
Paris ← I believe it's Paris! ¦ ✗Definitely not Paris.
art ← ✗It is the start. ¦ Modern art.
Eiffel Tower ← Probably the eiffel  tower in Paris
C++ ← Written in C++, I think.
12 ← There are 12 of them. ¦ ✗There are 120 of them.
USA || United States ← in the United States of America
Malmö ← It is MALMÖ
don't ← I don’t know
東京 ← 首都は東京です
Shakespeare ← William Shakespeare wrote it around 1600. ¦ ✗Nobody knows; some say Marlowe.
state-of-the-art ← a state‑of‑the‑art method
7 ← There are 7 of them. ¦ There are 7. ¦ ✗It costs 3.7.
7 ← ✗It costs 7.3. ¦ ✗It is -7 degrees. ¦ ✗1,007 people ¦ 答案是7。
3.7 ← It costs $3.7 in all
Lima ← Lima is the capital. ¦ ✗The climate is mild.
Lima ← ✗It isn't Lima. ¦ ✗The capital is Quito, not Lima. ¦ 首都是Lima。
Lima ← Not only that: Lima is also the largest city.
not guilty ← The jury found him not guilty.
10 ← 10 km ¦ ✗10.5 km ¦ ✗10,000 km ¦ 10. ¦ (10)
-5 ← It is -5 degrees
5 ← ✗13.5 ¦ ✗−5 ¦ ✗It is -5. ¦ covid-5 ¦ ✗It is minus 5. ¦ ✗negative 5 ¦ ✗It is .5 of it. ¦ ✗It is 5/8. ¦ It is 5.
8 ← ✗It is 5/8.
5/8 ← It is 5/8.
"""

CHOICES = r"""
B ← B ¦ b ¦ B. ¦ (B) ¦ **B** ¦ B) Jupiter ¦ B. Jupiter is the largest. ¦ B: Jupiter ¦ B - Jupiter ¦ Answer: B
B ← The answer is B. ¦ The answer is (B). ¦ The correct answer is **B. Jupiter** ¦ The correct option is B
B ← Option B is correct. ¦ I would choose option B. ¦ \boxed{B} ¦ \boxed{\text{B}}
B ← The answer is $\boxed{\textbf{(B)}}$ ¦ A planet is large, so the answer is B.
B ← A is wrong because Mars is small. C is hot. So the answer is B. ¦ Option A is incorrect. Option B is correct.
B ← Let's see. Mars is small. Jupiter is large.⏎⏎B ¦ Ｂ ¦ B⏎⏎Because Jupiter is the largest. ¦ B because it is large
B ← It is Jupiter. ¦ Jupiter ¦ The answer is Jupiter. ¦ My final answer: B) ¦ <answer>B</answer> ¦ 答案是 B ¦ ✗A
B ← ✗The answer is C. ¦ ✗A or B ¦ ✗Both A and B are right. ¦ ✗None of the above ¦ ✗I cannot answer this question. ¦ ✗
B ← ✗Because ¦ ✗The answer is not B. ¦ ✗Bananas ¦ ✗E
B ← 答案是B。 ¦ 答案：B ¦ 정답은 B입니다. ¦ 正解はBです。 ¦ {"answer": "B"}
B ← ✗{"answer": "A", "second": "B"} ¦ Not A. B. ¦ It's B, not A. ¦ ✗It's A, not B. ¦ ✗The answer isn't B.
B ← ✗Either B or C. ¦ Answer: B [1] ¦ <think>A? No.</think>⏎B ¦ B⏎Confidence: 80%
B ← The answer is B, Jupiter, rather than D. ¦ Die Antwort ist B. ¦ La réponse est B. ¦ Jupiter, not Venus
B ← ✗Not Jupiter ¦ I'd go with B ¦ The best answer is B. ¦ b) Jupiter ¦ B，因为木星最大
B ← It must be (B), since A and C are small. ¦ Between A and B, B is better.
B ← A is wrong, C is wrong, D is a star, so B. ¦ ✗I am torn between B and D. ¦ Mars? No, Jupiter. ¦ Answer: [B]
B ← Answer: A⏎⏎Actually, the answer is B. ¦ ✗None of A, C, or D is right. ¦ ✗The answer is neither A nor B.
B ← ✗It is not A or B. ¦ Neither A nor C, so B ¦ ✗B is wrong.
A ← A ¦ A. ¦ ✗A planet ¦ I think A is right. ¦ The answer is A ¦ A: Mars
D ← D. The Sun ¦ The Sun ¦ the sun is the largest object ¦ Initially I thought A, but the answer is D.
D ← D, as A, B and C are planets
A || D ← D
"""

#: What a judge said, and its verdict.
VERDICTS = {
    "The replies say the same.\nyes": True,
    "They differ in the year.\n\nno": False,
    '{"correct": true}': True,
    '```json\n{"correct": false}\n```': False,
    "Reasons … so\nY": True,
    "**N**": False,
    "<think>no</think>yes": True,
    '<think>no</think>{"correct": true}': True,
    "yes\nyes": True,
    "<think>so far:\nyes": None,
    "Is it complete?\nNo\nVerdict:\nYes": None,
    "The answer is right": None,
    "no, wait: yes": None,
    "not right": None,
    "yes\nno": None,
    "yes\nor no, depending on the unit": None,
    "Not Y": None,
    "{": None,
    "": None,
}


def cases(table):
    """(right answers, reply, whether it is right) of a table."""
    lines = [line.split(" ← ", 1) for line in table.strip("\n").split("\n")]
    pairs = [(reference, reply.replace("⏎", "\n")) for reference, replies in lines for reply in replies.split(" ¦ ")]
    return [(reference.split(" || "), reply.removeprefix("✗"), reply[:1] != "✗") for reference, reply in pairs]

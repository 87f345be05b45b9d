"""Two dozen prompts as people write them: questions, prose, code, lists, other languages."""

PROMPTS = (
    "The capital of France is",
    "What is the difference between a process and a thread?",
    "Write a short poem about a tower that was built of pages.",
    'def fibonacci(n):\n    """Return the n-th Fibonacci number."""\n',
    "Translate into German: The weather is nice today, so we are going for a walk by the river.",
    "Once upon a time, in a village at the foot of a mountain, there lived an old clockmaker who",
    "List three reasons why the sky looks blue during the day and red in the evening.\n1.",
    "La bibliothèque est fermée le dimanche, mais",
    "SELECT name, COUNT(*) FROM orders JOIN customers ON orders.customer_id = customers.id WHERE",
    "Q: A train leaves at 9:40 and arrives at 12:05. How long does the journey take?\nA:",
    "Dear Sir or Madam,\n\nI am writing to complain about the noise that your company's building "
    "site has been making every morning before six o'clock. For the past three weeks",
    "In computing, a cache is a component that stores data so that future requests for that data "
    "can be served faster; the data stored in a cache might be the result of an earlier "
    "computation or a copy of data stored elsewhere. A cache hit occurs when the requested data "
    "can be found in a cache, while a cache miss occurs when it cannot.",
    "Ingredients: two eggs, 200 g of flour, a pinch of salt, 300 ml of milk.\nInstructions:",
    "The three laws of thermodynamics, explained to a ten-year-old:",
    "import numpy as np\n\nclass Matrix:\n    def __init__(self, rows):\n"
    "        self.rows = rows\n\n    def __matmul__(self, other):\n",
    "Überall auf der Welt",
    "<p>Hello, <b>world</b>!</p>\n<ul>\n  <li>",
    "Who wrote 'Pride and Prejudice', and in which year was it first published?",
    "The quick brown fox jumps over the lazy dog. " * 6,
    "1, 1, 2, 3, 5, 8, 13, 21,",
    "User: My laptop does not start any more. The fan runs, but the screen stays black.\n"
    "Support: I am sorry to hear that. Does the keyboard light up when you press the button?\n"
    "User: Yes, for about two seconds, and then it goes dark again.\nSupport:",
    "東京は",
    "To be, or not to be, that is the question:",
    "Summarise the following in one sentence. The committee met on Tuesday to discuss the new "
    "bridge. Several members argued that the cost had doubled since the first estimate, while "
    "others pointed out that the old bridge would have to be closed within five years in any "
    "case. After four hours the vote was postponed until the engineers' report is finished, "
    "which is expected in the spring. Residents of both banks, who had come in large numbers, "
    "left disappointed.\nSummary:",
)

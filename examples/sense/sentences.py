"""Sentences in which one word has one of two senses, written for this example."""

__all__ = ["SENSES"]

_RIVER = """
We sat on the bank and watched the ducks swim past.
The river overflowed its bank after a week of rain.
Willows grow along the bank of the stream.
The canoe drifted toward the muddy bank.
He pulled the fish onto the bank with a net.
Reeds and wild iris covered the left bank.
The children slid down the grassy bank into the water.
An otter built its den under the bank.
The path follows the bank for several miles.
They camped on the bank of the Danube.
A heron stood motionless near the bank.
The current had eaten away the sandy bank.
We tied the boat to a tree on the bank.
Cattle came down to the bank to drink.
The ferry reached the opposite bank at noon.
Floodwater spilled over the bank and into the fields.
She picked blackberries along the bank of the creek.
The bridge joins one bank to the other.
Kingfishers nest in holes in the bank.
The swimmer climbed out onto the bank, shivering.
Mist hung over the bank at dawn.
The beaver dragged branches up the bank.
A steep bank rose above the rapids.
Fishermen lined the bank below the weir.
"""

_MONEY = """
She opened a savings account at the bank.
The bank raised its interest rates again.
He borrowed ten thousand dollars from the bank.
The bank refused to approve the mortgage.
I have to deposit this check at the bank.
The robbers escaped from the bank with the cash.
My bank charges a fee for every transfer.
The central bank printed more currency.
The bank went bankrupt during the crisis.
She works as a teller in a bank.
Customers queued outside the bank to withdraw their money.
The bank sent me a new credit card.
Our bank offers loans to small companies.
The bank froze his account without warning.
The shareholders of the bank voted for a merger.
He keeps his gold in a vault at the bank.
The bank reported a loss in the third quarter.
Regulators fined the bank for hiding its debts.
The bank closed three of its branches.
I called the bank about my overdraft.
The manager of the bank signed the contract.
The government had to rescue the bank with taxes.
She paid the invoice through her bank.
The bank lends at five percent a year.
"""

_FRUIT = """
She peeled an apple and cut it into slices.
He ate an apple after lunch.
The apple fell from the tree into the grass.
A ripe apple tastes sweet and a little sour.
We baked an apple pie with cinnamon.
There was a worm in the apple.
The horse took the apple from my hand.
Put an apple and a banana in the basket.
The doctor told him to eat an apple every day.
An apple has more fiber than its juice.
The orchard grows an old kind of apple.
She bit into the crisp green apple.
Grate one apple into the salad.
The recipe needs one apple, sugar and butter.
He polished the red apple on his sleeve.
The skin of the apple was bruised.
Birds had pecked at the apple on the branch.
My grandmother made apple jam every autumn.
The apple was rotten at the core.
I would rather have an apple than a pear.
They pressed the apple harvest into cider.
He planted the seeds of an apple.
Serve the cheese with bread and an apple.
The child dropped her apple in the mud.
"""

_COMPANY = """
The new phone from apple sold out in a day.
Shares of apple rose after the earnings report.
She works as a software engineer at apple.
The lawsuit accuses apple of copying the design.
Developers submit their programs to apple for review.
The court ordered apple to pay a large fine.
He bought stock in apple twenty years ago.
Last night apple announced a faster laptop.
The chief executive of apple spoke at the conference.
Regulators say apple abuses its market power.
The latest update from apple fixes a security bug.
Both google and apple collect data from their users.
The factory assembles tablets for apple.
My computer is made by apple.
In its lawsuit apple claims a patent on the screen.
Analysts expect apple to report record revenue.
The store of apple in the mall opens at ten.
She left microsoft to join apple.
The operating system of apple runs only on its own machines.
Investors worry that apple depends on one product.
The startup was acquired by apple for a billion dollars.
The keynote of apple was streamed online.
Engineers at apple designed their own processor.
Customers of apple complained about the battery.
"""


def _lines(text: str) -> list[str]:
    return text.strip().splitlines()


SENSES = {
    "bank": {"river": _lines(_RIVER), "money": _lines(_MONEY)},
    "apple": {"fruit": _lines(_FRUIT), "company": _lines(_COMPANY)},
}
"""Word, sense, sentences."""

"""A new customer: steps, items, an approval, a sleep, a message, a mail, and a plan.

Run it with `python -m examples.onboarding`; kill it whenever you like, and run it again.

    model.py     what is stored
    gateway.py   a fake mail server that honours keys
    jobs.py      the app: its steps and its job
"""

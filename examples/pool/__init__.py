"""A supervised worker pool: workers crash, are restarted, and the work continues.

Run it with `python -m examples.pool`. It is made of three kinds of process:

    dispatcher      hands out the jobs; monitors the workers, so that no job is lost with one
    supervisor      keeps the workers alive; linked to them, and restarts those that die
     └── worker …   does one job after another, and simply crashes if one is bad
"""

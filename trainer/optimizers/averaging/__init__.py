"""Workers that train on copies of their own, and meet now and then."""

"""Jobs: what a cluster does on its own after a request has started it.

Enter through `registry`, which runs jobs and answers what is asked about them.
"""

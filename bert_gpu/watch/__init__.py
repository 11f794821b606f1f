"""Commands that read the folders of runs and draw or list the runs, while they run or
afterwards.
"""

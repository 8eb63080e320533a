"""The choice of precisions: samples, ranges, errors at the outputs, times, and the knapsack."""

"""Recipes: named settings of published trainings, and the rules for overriding them."""

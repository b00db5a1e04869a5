"""Traces a program through autograd and functionalisation into one functional graph."""

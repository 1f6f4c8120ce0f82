"""Does pretraining carry facts? (CS224N, assignment 4)"""

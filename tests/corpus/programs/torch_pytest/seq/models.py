import torch
from torch import nn


class Tagger(nn.Module):
    def __init__(self, kind, *, vocab, dim, tags):
        super().__init__()
        self.kind = kind
        self.embed = nn.Embedding(vocab, dim)
        self.rnn = {"lstm": nn.LSTM, "gru": nn.GRU}[kind](dim, dim, batch_first=True)
        self.head = nn.Linear(dim, tags)

    def forward(self, tokens):
        states, _ = self.rnn(self.embed(tokens))
        return torch.log_softmax(self.head(states), -1)

  %z = math.absf %y : {{ t }}
  return %z : {{ t }}
}

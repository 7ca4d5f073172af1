#!/bin/sh
# Train an exit head on what the model itself says, and draft with it: sh exit_head.sh prompts.txt [MODEL]
# Ten minutes here show how it goes; docs/training.md says what a head that pays takes. pip install 'selfspec[train]'
set -eu
PROMPTS=$1
MODEL=${2:-smollm2-135m}
LAYER=${LAYER:-8}
MINUTES=${MINUTES:-10}

selfspec train data --model "$MODEL" --prompts "$PROMPTS" --out answers --max-new-tokens 64
selfspec train exit-head --model "$MODEL" --data answers --out exits --layers "$LAYER" --minutes "$MINUTES"
selfspec generate "Name three rivers." --model "$MODEL" --draft early_exit --head "exits/exit-$LAYER.safetensors" --gamma 2
selfspec generate "Name three rivers." --model "$MODEL" --draft plain

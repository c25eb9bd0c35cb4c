// The glossary and PyTorch's terms.

// PyTorch's names and psring's.
const PYTORCH = [
  ['DistributedDataParallel', '--strategy ring', 'p_ddp'], ['DataParallel', '--strategy data-parallel', 'p_dp'],
      ['torch.distributed.rpc', '--strategy ps-sync, ps-async', 'p_rpc'],
  ['init_process_group(backend)', '--strategy gloo, nccl, mpi', 'p_backend'], ['world_size', '--workers', 'p_world'],
      ['bucket_cap_mb', '--bucket_mb', 'p_bucket'],
  ['torch.distributed.pipelining', '--pp P, --program', 'p_pipelining'], ['no_sync()', '--micro_batches K', 'p_no_sync'], ['bf16_compress_hook', '--wire bfloat16', 'p_wire'],
      ['dist.all_reduce(tensor)', 'psring bench', 'p_all_reduce'],
  ['get_ddp_logging_data()', 'ddp.jsonl', 'p_logging'], ['optimizer.step()', 'step', 'p_step'],
];

// Terms that only the page of a run with a pipeline explains.
const OF_PIPELINES = ['stage', 'micro-batch', 'bubble', 'p_pipelining'];

function drawWords(parent, run) {
  const shown = (word) => hasPipeline(run) || !OF_PIPELINES.includes(word);
  const table = (id, heads, rows) => scrollTable({class: 'words', id}, heads.join(', '), heads, rows);
  parent.append(table('glossary', [t('psring_says'), t('meaning')], DATA.glossary.filter(([word]) => shown(word)).map(([word, meaning]) => [rowHead(word), inLanguage(meaning)])),
    make('h4', {}, t('pytorch_title')), table('pytorch', [t('pytorch'), t('psring_says'), t('meaning')],
        PYTORCH.filter(([, , key]) => shown(key)).map(([theirs, ours, key]) => [rowHead(theirs), ours, t(key)])));
}

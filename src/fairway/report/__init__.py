"""Results for people: one offline HTML file, timelines that open in Perfetto."""
